package dump

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestInterruptedListIsRepeated(t *testing.T) {
	calls := 0
	got, err := Complete(func() ([]int, error) {
		if calls++; calls < 3 {
			return []int{1}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2}, nil
	})
	if err != nil || !slices.Equal(got, []int{1, 2}) || calls != 3 {
		t.Errorf("%v, %v after %d calls", got, err, calls)
	}
	for _, lasting := range []error{netlink.ErrDumpInterrupted, errors.New("other")} {
		if _, err := Complete(func() ([]int, error) { return nil, lasting }); !errors.Is(err, lasting) {
			t.Errorf("error %v, want %v", err, lasting)
		}
	}
}
