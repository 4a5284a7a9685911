package ppoll

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/eventually"
)

// pipe returns the two ends of a pipe.
func pipe(t testing.TB) (read, write int) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Close(fds[0])
		unix.Close(fds[1])
	})
	return fds[0], fds[1]
}

func put(t testing.TB, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, []byte{1}); err != nil {
		t.Error(err)
	}
}

func TestWait(t *testing.T) {
	read, write := pipe(t)
	fds := []unix.PollFd{{Fd: -1}, {Fd: int32(read), Events: unix.POLLIN}}
	t.Run("timeout", func(t *testing.T) {
		began := time.Now()
		if err := Wait(fds, 20*time.Millisecond); err != nil || fds[1].Revents != 0 {
			t.Errorf("%v, events %x", err, fds[1].Revents)
		}
		if took := time.Since(began); took < 20*time.Millisecond {
			t.Errorf("it returned after %v", took)
		}
	})
	t.Run("event", func(t *testing.T) {
		go put(t, write)
		if err := Wait(fds, Forever); err != nil || fds[1].Revents != unix.POLLIN {
			t.Errorf("%v, events %x", err, fds[1].Revents)
		}
	})
	t.Run("present event", func(t *testing.T) {
		if err := Wait(fds, 0); err != nil || fds[1].Revents != unix.POLLIN {
			t.Errorf("%v, events %x", err, fds[1].Revents)
		}
	})
	t.Run("no descriptors", func(t *testing.T) {
		if err := Wait(nil, time.Millisecond); err != nil {
			t.Error(err)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		read, _ := pipe(t)
		fds := []unix.PollFd{{Fd: int32(read), Events: unix.POLLIN, Revents: unix.POLLIN}}
		threads := make(chan int, 1)
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			threads <- unix.Gettid()
			done <- Wait(fds, Forever)
		}()
		thread := <-threads
		for { // until a signal finds it in the call
			if err := unix.Tgkill(unix.Getpid(), thread, unix.SIGURG); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				if err != nil || fds[0].Revents != 0 {
					t.Errorf("%v, events %x", err, fds[0].Revents)
				}
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	t.Run("error", func(t *testing.T) {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if limit.Cur > 1<<21 {
			t.Skipf("capability: a limit of open files below 2 million, not %d", limit.Cur)
		}
		if err := Wait(make([]unix.PollFd, limit.Cur+1), 0); !errors.Is(err, unix.EINVAL) {
			t.Errorf("more descriptors than allowed: %v", err)
		}
	})
	t.Run("allocations", func(t *testing.T) {
		if n := testing.AllocsPerRun(100, func() { _ = Wait(fds, time.Microsecond) }); n > 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// Others run while threads wait, the collector included. It shrinks large stacks that are almost empty, but must leave
// those of waiting threads where they are.
func TestCollector(t *testing.T) {
	const waiting = 8
	threads, done := make(chan int), make(chan bool)
	var ends []int
	for range waiting {
		read, write := pipe(t)
		ends = append(ends, write)
		go func() {
			runtime.LockOSThread()
			deep(1000)
			threads <- unix.Gettid()
			done <- waitIntact(t, read)
		}()
	}
	for range waiting {
		waitInCall(t, <-threads)
	}
	for range 5 {
		runtime.GC()
	}
	for _, write := range ends {
		put(t, write)
	}
	for range waiting {
		if !<-done {
			t.Error("the stack changed")
		}
	}
}

// deep makes the stack large.
func deep(frames int) int {
	var local [64]byte
	for i := range local {
		local[i] = byte(frames)
	}
	if frames == 0 {
		return 0
	}
	return deep(frames-1) + int(local[frames%len(local)])
}

// waitIntact waits, and reports whether its variables are as before.
func waitIntact(t *testing.T, read int) bool {
	var local [64]byte
	for i := range local {
		local[i] = byte(i)
	}
	fds := [1]unix.PollFd{{Fd: int32(read), Events: unix.POLLIN}}
	if err := Wait(fds[:], Forever); err != nil {
		t.Error(err)
	}
	for i, octet := range local {
		if int(octet) != i {
			return false
		}
	}
	return fds[0].Revents == unix.POLLIN
}

// waitInCall waits until a thread is in ppoll(2).
func waitInCall(t *testing.T, thread int) {
	t.Helper()
	want := fmt.Sprintf("%d ", unix.SYS_PPOLL)
	eventually.Nil(t, 10*time.Second, fmt.Sprintf("thread %d waits", thread), func(context.Context) error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", thread))
		if err != nil {
			t.Fatal(err)
		}
		return eventually.Unless(strings.HasPrefix(string(text), want), "it is in system call %s", text)
	})
}

// BenchmarkWait compares Wait with ppoll(2) as a system call of Go: one wait of 20 ms, and what the process does
// meanwhile.
func BenchmarkWait(b *testing.B) {
	read, _ := pipe(b)
	for _, c := range []struct {
		name string
		wait func(fds []unix.PollFd, timeout time.Duration) error
	}{
		{"Wait", Wait},
		{"Ppoll", func(fds []unix.PollFd, timeout time.Duration) error {
			limit := unix.NsecToTimespec(int64(timeout))
			_, err := unix.Ppoll(fds, &limit, nil)
			return err
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			fds := []unix.PollFd{{Fd: int32(read), Events: unix.POLLIN}}
			before := usage(b)
			for b.Loop() {
				if err := c.wait(fds, 20*time.Millisecond); err != nil && !errors.Is(err, unix.EINTR) {
					b.Fatal(err)
				}
			}
			after := usage(b)
			b.ReportMetric(float64(after.Nvcsw-before.Nvcsw)/float64(b.N), "switches/op")
			cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(cpu)/1e3/float64(b.N), "cpu-us/op")
		})
	}
}

func usage(b *testing.B) (u unix.Rusage) {
	b.Helper()
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u
}
