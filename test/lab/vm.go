package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironlb/ironlb/test/lab/guest"
)

// vmMemory, in MiB, is enough for a node's programs; it has no Pods.
const vmMemory = 1024

// bootVM boots the node's virtual machine, with its links on the lab's switches, and creates the node's namespace in
// it.
func (n *Node) bootVM(ctx context.Context) error {
	c := n.c
	c.printf("booting %s, a virtual machine", n.Name)
	boot, cancel := context.WithCancel(c.life)
	stop := context.AfterFunc(ctx, cancel)
	defer stop() // the virtual machine outlives ctx: it ends with the lab
	switches := c.ns("net")
	g, err := guest.Start(boot, guest.Config{
		Links: []guest.Link{
			{Name: "eth0", MAC: mac(n.Addr), NetNS: switches, Bridge: lanBridge, Tap: n.port(lanBridge)},
			{Name: "api0", MAC: mac(n.APIAddr), NetNS: switches, Bridge: apiBridge, Tap: n.port(apiBridge)},
		},
		Shares:    []string{c.Dir},
		Programs:  []string{c.build.Private},
		MemoryMiB: vmMemory,
		Log:       c.log,
	})
	if err != nil {
		cancel()
		return fmt.Errorf("boot %s: %w", n.Name, err)
	}
	n.host, n.vm = g, g
	c.onClose(g.Close)
	go func() {
		<-g.Lost()
		c.fail(fmt.Errorf("%s: %w", n.Name, g.Err()))
	}()
	c.printf("%s is up after %s (%s)", n.Name, g.Boot.Round(100*time.Millisecond), accelText(g.Accel))

	var s script
	s.line("ip netns add %[1]s\nip link set eth0 netns %[1]s\nip link set api0 netns %[1]s", n.Namespace)
	n.joinLAN(&s)
	n.setUp(&s)
	if err := s.run(ctx, g); err != nil {
		return fmt.Errorf("make the network of %s: %w", n.Name, err)
	}
	return nil
}

// PauseVM pauses the node's virtual machine, its clocks included; see guest.Guest.Pause.
func (n *Node) PauseVM(ctx context.Context) error {
	if n.vm == nil {
		return errNotVM(n)
	}
	return n.vm.Pause(ctx)
}

// ResumeVM reverts PauseVM.
func (n *Node) ResumeVM(ctx context.Context) error {
	if n.vm == nil {
		return errNotVM(n)
	}
	return n.vm.Resume(ctx)
}

func errNotVM(n *Node) error {
	return fmt.Errorf("%s is no virtual machine: Config.VirtualMachines", n.Name)
}

var errIsVM = errors.New("it is a virtual machine, which the lab has no such fault and no Pods for")

// emulated reports whether the node's kernel runs in a guest with an emulated processor.
func (n *Node) emulated() bool {
	return n.c.guest != nil && n.c.guest.Accel == "tcg" || n.vm != nil && n.vm.Accel == "tcg"
}
