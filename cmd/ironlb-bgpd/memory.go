package main

import (
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// Memory of a peer's process in MiB. The runtime of Go maps 64 MiB at a time. With 10,000 prefixes of its own a
// process has 63 MB, and a router's full table of a million prefixes is 0.9 GB and more.
const (
	defaultPeerMemory = 384
	leastPeerMemory   = 192
)

// limitMemory has the kernel give this process no more memory than that (RLIMIT_DATA, setrlimit(2)), at which it ends.
// Without it what a router sends would end all processes of the container, BFD's too (memory.oom.group of its cgroup).
// The collector works harder before.
func limitMemory(mib uint) error {
	if mib == 0 {
		return nil
	}
	limit := uint64(mib) << 20
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return fmt.Errorf("limit the memory of this process to %d MiB: %w", mib, err)
	}
	debug.SetMemoryLimit(int64(limit / 4 * 3))
	return nil
}
