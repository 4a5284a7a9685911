package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

// BGPSocket is the path of the socket where the node's ironlb-bgpd awaits its speaker. A guest's own /run supports
// sockets; a shared folder may not.
func (n *Node) BGPSocket() string {
	dir := n.c.Dir
	if n.c.guest != nil || n.vm != nil {
		dir = "/run/ironlb"
	}
	return filepath.Join(dir, "bgp-"+n.Name, "bgpd.sock")
}

// StartBGP starts ironlb-bgpd on the node. With Config.BGP, StartSpeaker does this if none runs, as the containers of a
// Pod start together.
func (n *Node) StartBGP(ctx context.Context, flags ...string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.startBGP(ctx, flags...)
}

func (n *Node) startBGP(ctx context.Context, flags ...string) error {
	if n.bgp != nil && n.bgp.Running() {
		return fmt.Errorf("start ironlb-bgpd on %s: it runs already", n.Name)
	}
	argv, err := n.c.contained("ironlb-bgpd", append([]string{n.c.build.Path("ironlb-bgpd"), "--socket", n.BGPSocket()}, flags...)...)
	if err != nil {
		return err
	}
	p, err := n.Start(ctx, "ironlb-bgpd", host.Cmd{Argv: argv})
	if err != nil {
		return err
	}
	n.c.watch(p)
	n.bgp = p
	return nil
}

// BGP returns the node's ironlb-bgpd, for Pause and Resume; nil if none was started.
func (n *Node) BGP() *process.Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.bgp
}

// StopBGP ends the node's ironlb-bgpd with SIGTERM and waits for its end, as when its container is replaced.
func (n *Node) StopBGP() error {
	if p := n.BGP(); p != nil {
		return p.Stop(stopGrace)
	}
	return nil
}

// KillBGP ends the node's ironlb-bgpd with SIGKILL, and with it its children.
func (n *Node) KillBGP() error {
	if p := n.BGP(); p != nil {
		return p.Kill()
	}
	return nil
}

// KillGoBGP ends the children of the node's ironlb-bgpd with SIGKILL, as in a crash.
func (n *Node) KillGoBGP(ctx context.Context) error {
	p := n.BGP()
	if p == nil || !p.Running() {
		return errors.New("kill GoBGP: no ironlb-bgpd runs on " + n.Name)
	}
	if _, err := n.Exec(ctx, "pkill", "-KILL", "-P", strconv.Itoa(p.Pid())); err != nil {
		return fmt.Errorf("kill GoBGP: %w", err)
	}
	return nil
}
