// Package rare marks the tests that `make test` leaves to `make test-all`: faults that are rare, repeats at a second level
// or on a second data plane, and many rounds of one thing.
package rare

import (
	"os"
	"testing"
)

// Reason is the message of each skip. test/skips counts these.
const Reason = "left to make test-all"

// All is set by `make test-all`.
var All = os.Getenv("IRONLB_TEST_ALL") != ""

// Test skips a test that is not for every change.
func Test(t testing.TB) {
	t.Helper()
	if !All {
		t.Skip(Reason)
	}
}

// Rounds returns how often to repeat something: few times in `make test`, and many in `make test-all`.
func Rounds(few, many int) int {
	if All {
		return many
	}
	return few
}
