package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/ironlb/ironlb/test/lab/host"
)

// Shell runs argv on Management with this process's streams and the administrator's KUBECONFIG. PATH begins with a
// folder that has kubectl and its plugin, Helm with Config.Kubelets, and a command for each machine: "node1 ipvsadm -Ln".
// These call runner, the words of a command line, with a socket ("-": not needed), a namespace and the command to run in
// it.
func (c *Cluster) Shell(ctx context.Context, runner []string, tty bool, argv ...string) error {
	socket := "-"
	if c.guest != nil {
		socket = filepath.Join(c.Dir, "guest.sock")
		stop, err := c.serveGuest(socket)
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := c.plugin(); err != nil {
		return err
	}
	bin := c.build.Private
	if err := c.writeCommands(bin, runner, socket); err != nil {
		return fmt.Errorf("write the shell's commands: %w", err)
	}
	cmd := host.Cmd{
		Argv:  c.Management.Argv(argv...),
		Env:   append(c.adminEnv(), "PATH="+bin+":"+os.Getenv("PATH")),
		Dir:   c.Root,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		TTY: tty,
	}
	p, err := c.Management.host.Start(ctx, cmd)
	if err != nil {
		return err
	}
	return p.Wait()
}

// serveGuest lets other processes run commands in the guest, through a socket.
func (c *Cluster) serveGuest(socket string) (stop func(), err error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("serve the guest to the shell: %w", err)
	}
	ctx, cancel := context.WithCancel(c.life)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := c.guest.Serve(ctx, l); err != nil {
			c.fail(err)
		}
	}()
	return func() { cancel(); <-ended }, nil
}

func (c *Cluster) writeCommands(dir string, runner []string, socket string) error {
	errs := []error{os.Symlink(c.KubectlPath(), filepath.Join(dir, "kubectl"))}
	if c.cfg.Kubelets != nil {
		errs = append(errs, os.Symlink(c.build.Path(helm), filepath.Join(dir, "helm")))
	}
	for _, m := range c.Machines() {
		line := quote(append(append([]string{}, runner...), socket, m.Namespace)...)
		script := "#!/bin/sh\nexec " + line + " \"$@\"\n"
		errs = append(errs, os.WriteFile(filepath.Join(dir, m.Name), []byte(script), 0o755))
	}
	return errors.Join(errs...)
}

// Machines lists the machines in the lab's kernel.
func (c *Cluster) Machines() []*Machine {
	all := []*Machine{c.Client, c.Remote, c.Router, c.machine("net", router)}
	for _, n := range c.Nodes {
		all = append(all, &n.Machine)
	}
	return all
}

// quote quotes words for a POSIX shell.
func quote(words ...string) string {
	var s strings.Builder
	for i, w := range words {
		if i > 0 {
			s.WriteByte(' ')
		}
		io.WriteString(&s, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	return s.String()
}
