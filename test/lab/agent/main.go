// Command agent is the first process of a lab's guest. It builds the guest's root from the host's, then keeps a child
// that runs the commands requested by the host. It works only in a guest.
package main

import (
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

const serveArg = "serve"

func main() {
	if len(os.Args) == 2 && os.Args[1] == serveArg {
		err := serve()
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "agent: it is the first process of a lab's guest; see test/lab/cmd/guest")
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "agent: ended:", boot())
	unix.Sync()
	// QEMU runs with -no-reboot, so this ends it; the host observes that the guest has ended.
	unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

// boot returns only when the guest is no longer usable.
func boot() error {
	if err := setUp(); err != nil {
		return err
	}
	c := exec.Command("/proc/self/exe", serveArg)
	c.Env = baseEnv
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	if err := c.Start(); err != nil {
		return fmt.Errorf("start the serving process: %w", err)
	}
	return reap(c.Process.Pid)
}

// reap collects orphans until the serving process ends. The serving process waits for its own children; no exit status
// of these is collected here.
func reap(server int) error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("wait for children: %w", err)
		case pid == server:
			return fmt.Errorf("serving process ended, wait status %#x", int(status))
		}
	}
}
