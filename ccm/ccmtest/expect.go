package ccmtest

import "testing"

func Expect(t *testing.T, what, want string) {
	t.Helper()
	if what != want {
		t.Errorf("got %q, want %q", what, want)
	}
}
