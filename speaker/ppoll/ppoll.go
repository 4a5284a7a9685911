// Package ppoll waits for file descriptors on the calling thread, without a processor of Go's scheduler.
//
// Go's own poller resumes a goroutine by way of whichever thread polls. A thread that the kernel runs before others
// (package priority) must not depend on an ordinary one, so it waits in ppoll(2) itself. During a system call it would
// keep its processor until the runtime's sysmon takes that away, after 10 ms or less. Meanwhile sysmon wakes each
// 20 µs and more (retake of runtime/proc.go), which costs more than the waiting thread's own work. Wait gives up the
// processor first, as the runtime does for its own blocking calls. To return, it takes an idle one; while all are busy,
// it waits for the scheduler, as any goroutine does after a long system call.
package ppoll

import (
	"errors"
	"syscall"
	"time"
	"unsafe" // for go:linkname too

	"golang.org/x/sys/unix"
)

// Forever is a timeout that never passes.
const Forever time.Duration = -1

// Wait waits until a descriptor has one of its events, the timeout has passed, or a signal has interrupted it, and sets
// Revents. It allocates nothing. See ppoll(2) for errors; EINTR is none.
func Wait(fds []unix.PollFd, timeout time.Duration) error {
	var limit *unix.Timespec
	var ts unix.Timespec
	if timeout >= 0 {
		ts = unix.NsecToTimespec(int64(timeout))
		limit = &ts
	}
	for i := range fds {
		fds[i].Revents = 0 // an interrupted call sets none
	}
	first, n := unsafe.Pointer(unsafe.SliceData(fds)), uintptr(len(fds))
	var errno syscall.Errno
	if timeout == 0 {
		_, _, errno = syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(first), n, uintptr(unsafe.Pointer(limit)), 0, 0, 0)
	} else {
		errno = block(first, n, unsafe.Pointer(limit))
	}
	if errno != 0 && !errors.Is(errno, unix.EINTR) {
		return errno
	}
	return nil
}

// block must not grow the stack between the two calls of the runtime.
//
//go:nosplit
func block(fds unsafe.Pointer, n uintptr, timeout unsafe.Pointer) syscall.Errno {
	entersyscallblock()
	_, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(fds), n, uintptr(timeout), 0, 0, 0)
	exitsyscall()
	return errno
}

// The runtime keeps both functions for programs that refer to them by name (go.dev/issue/67401).

//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()
