// Package dump reads lists from the kernel while they change.
package dump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// Complete repeats a dump that a concurrent change interrupted, as happens while Pods start and stop.
func Complete[T any](list func() ([]T, error)) ([]T, error) {
	const tries = 5
	for range tries - 1 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}
