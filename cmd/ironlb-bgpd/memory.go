package main

import (
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// Memory of a peer's process in MiB. The Go runtime maps 64 MiB at a time. With 10,000 own prefixes a process has 63
// MB. A router's full table of a million prefixes takes 0.9 GB and more.
const (
	defaultPeerMemory = 384
	leastPeerMemory   = 192
)

// limitMemory limits the memory of this process in the kernel (RLIMIT_DATA, setrlimit(2)); at the limit the process
// ends. Otherwise a router's routes could end all processes of the container, including BFD's (memory.oom.group of its
// cgroup). The garbage collector runs more often near the limit.
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
