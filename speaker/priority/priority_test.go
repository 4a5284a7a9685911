package priority

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A twentieth of a core. The kernel grants 95 % of all cores; this much is left when speakers and other tests have
// their shares.
const (
	run    = 500 * time.Microsecond
	period = 10 * time.Millisecond
)

// onThread runs f on its own thread, which ends with f: f may drop privileges from it.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}

// entitled skips the test if the process may not raise its priority.
func entitled(t *testing.T) {
	t.Helper()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&h, &caps[0]); err != nil {
		t.Fatal(err)
	}
	if caps[0].Effective&(1<<unix.CAP_SYS_NICE) == 0 {
		if testing.Short() {
			t.Skip("capability: CAP_SYS_NICE (root; left out in short mode)")
		}
		t.Fatal("CAP_SYS_NICE is missing: run this as root, or with -short")
	}
}

// is returns the scheduling attributes of the calling thread.
func is(t *testing.T) (attr *unix.SchedAttr) {
	t.Helper()
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Error(err)
		return &unix.SchedAttr{}
	}
	return attr
}

// as checks that the calling thread has its previous scheduling attributes.
func as(t *testing.T, was *unix.SchedAttr) {
	t.Helper()
	if a := is(t); a.Policy != was.Policy || a.Nice != was.Nice {
		t.Errorf("it had %+v and has %+v", was, a)
	}
}

// TestShare: the thread runs before others, but only for its share, whatever its load.
func TestShare(t *testing.T) {
	entitled(t)
	onThread(func() {
		was := is(t)
		class, lower, err := Raise(run, period)
		for deadline := time.Now().Add(20 * time.Second); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); { // other programs' threads use all shares
			lower()
			<-time.After(10 * time.Millisecond)
			class, lower, err = Raise(run, period)
		}
		if class != Deadline || err != nil {
			t.Errorf("got class %s, %v", class, err)
			return
		}
		if a := is(t); a.Policy != unix.SCHED_DEADLINE || a.Runtime != uint64(run) || a.Deadline != uint64(period) || a.Period != uint64(period) ||
			a.Flags&unix.SCHED_FLAG_RESET_ON_FORK == 0 {
			t.Errorf("the thread has %+v", a)
		}
		var before, after unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_THREAD, &before)
		began := time.Now()
		for time.Since(began) < 300*time.Millisecond { // as if it were flooded
		}
		took := time.Since(began)
		_ = unix.Getrusage(unix.RUSAGE_THREAD, &after)
		used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
		if used > took/4 { // a twentieth, plus the lateness of the kernel's tick
			t.Errorf("it ran for %v of %v", used, took)
		}
		lower()
		as(t, was)
	})
}

// TestNice: a thread that may not run on every core gets a nice value instead of a share.
func TestNice(t *testing.T) {
	entitled(t)
	if runtime.NumCPU() == 1 {
		t.Skip("capability: two cores")
	}
	onThread(func() {
		var all, one unix.CPUSet
		if err := unix.SchedGetaffinity(0, &all); err != nil {
			t.Error(err)
			return
		}
		for cpu := range 1024 {
			if all.IsSet(cpu) {
				one.Set(cpu)
				break
			}
		}
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Error(err)
			return
		}
		was := is(t)
		class, lower, err := Raise(run, period)
		if class != Nice || !errors.Is(err, unix.EPERM) {
			t.Errorf("got class %s, %v", class, err)
		}
		if a := is(t); a.Policy != unix.SCHED_NORMAL || a.Nice != -20 {
			t.Errorf("the thread has %+v", a)
		}
		lower()
		as(t, was)
	})
}

// TestOrdinary: without CAP_SYS_NICE the thread stays ordinary, and the error reports that.
func TestOrdinary(t *testing.T) {
	onThread(func() {
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&h, &caps[0]); err != nil {
			t.Error(err)
			return
		}
		caps[0].Effective &^= 1 << unix.CAP_SYS_NICE // of this thread only
		if err := unix.Capset(&h, &caps[0]); err != nil {
			t.Error(err)
			return
		}
		was := is(t)
		class, lower, err := Raise(run, period)
		if class != Normal || !errors.Is(err, unix.EPERM) || !errors.Is(err, unix.EACCES) {
			t.Errorf("got class %s, %v", class, err)
		}
		as(t, was)
		lower()
		as(t, was)
	})
}
