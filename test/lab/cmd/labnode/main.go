// labnode is the first process of a lab node with a kubelet, and starts the node's other processes.
//
//	labnode init -name NODE -cgroup NAME -dir DIR   sets up a node; prints "ready"; ends with the node
//	labnode join -cgroup NAME -- COMMAND            runs a command in the node's cgroups
//	labnode remove -cgroup PATTERN                  removes the cgroups of nodes that are off
//
// init expects mount, UTS and PID namespaces of its own, created by "unshare", and is process 1 of the PID namespace.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/ironlb/ironlb/test/lab/cgroup"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "labnode:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("use: labnode init | join | remove")
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	name := flags.String("name", "", "host name of the node")
	group := flags.String("cgroup", "", "cgroup of the node, or a pattern for remove")
	dir := flags.String("dir", "", "folder with the files of the node")
	flags.Parse(args[1:]) // exits on an error
	switch args[0] {
	case "init":
		if err := boot(*name, *group, *dir); err != nil {
			return err
		}
		fmt.Println("ready")
		reap()
		return nil
	case "join":
		return join(*group, flags.Args())
	case "remove":
		return cgroup.Remove(*group)
	}
	return fmt.Errorf("unknown command %s", args[0])
}

func join(group string, argv []string) error {
	if len(argv) == 0 {
		return errors.New("join: no command")
	}
	if err := cgroup.Join(group); err != nil {
		return err
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return os.NewSyscallError("exec "+program, syscall.Exec(program, argv, os.Environ()))
}

// reap collects orphaned processes, as process 1 must. It never returns: the node ends when this process is killed.
func reap() {
	for {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(-1, &status, 0, nil); errors.Is(err, syscall.ECHILD) {
			waitForChild()
		}
	}
}
