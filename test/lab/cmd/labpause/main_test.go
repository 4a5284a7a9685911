package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/eventually"
)

// As the first process of a PID namespace it reaps orphans, and exits with status 0 on a runtime's signals.
func TestFirstProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root for a PID namespace")
	}
	program := filepath.Join(t.TempDir(), "pause")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := exec.Command(program)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := strconv.Itoa(cmd.Process.Pid)
		children := func() string {
			data, err := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(data))
		}
		eventually.True(t, 10*time.Second, "the program handles SIGCHLD", func() bool { return handles(t, pid, syscall.SIGCHLD) })
		// The shell ends before its child, which then becomes a child of the first process.
		inside := exec.Command("nsenter", "-t", pid, "-p", "sh", "-c", "cat <&3 >/dev/null 2>&1 &")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		inside.ExtraFiles = []*os.File{r}
		if out, err := inside.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		r.Close()
		eventually.True(t, 10*time.Second, "the orphan belongs to the first process", func() bool { return children() != "" })
		w.Close()
		eventually.True(t, 10*time.Second, "the orphan is reaped", func() bool { return children() == "" })
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%v: %v", signal, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("runs on after %v", signal)
			_ = cmd.Process.Kill()
			<-ended
		}
	}
}

// handles reports whether a process has a handler for a signal.
func handles(t *testing.T, pid string, signal syscall.Signal) bool {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "SigCgt:")
	mask, err := strconv.ParseUint(strings.Fields(rest)[0], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return mask&(1<<(signal-1)) != 0
}
