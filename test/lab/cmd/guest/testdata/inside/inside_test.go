// Package inside is run in a guest by TestWith.
package inside

import (
	"os"
	"testing"
)

func TestInside(t *testing.T) {
	if b, err := os.ReadFile("input"); err != nil || string(b) != "from the folder" {
		t.Errorf("input: %q, %v", b, err)
	}
	if os.Getenv("LAB_FAIL") != "" {
		t.Error("made to fail")
	}
	if err := os.WriteFile(os.Getenv("LAB_OUTPUT"), []byte("from the guest"), 0o644); err != nil {
		t.Error(err)
	}
}
