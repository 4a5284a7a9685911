package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

// Machine is a network namespace: a node, a client, the router, or the
// management machine.
type Machine struct {
	Name      string
	Namespace string     // in its kernel
	Addr      netip.Addr // on the LAN; of Management: on the API network
	Addr6     netip.Addr // in addition to Addr; Management has none

	c    *Cluster
	host host.Host
}

// Argv returns the command that runs argv in the machine, for Host.
func (m *Machine) Argv(argv ...string) []string {
	return append([]string{"ip", "netns", "exec", m.Namespace}, argv...)
}

// Host returns the kernel of the machine's namespace.
func (m *Machine) Host() host.Host { return m.host }

// Exec runs a command in the machine and returns its standard output. An
// error carries its standard error.
func (m *Machine) Exec(ctx context.Context, argv ...string) (string, error) {
	out, err := host.Run(ctx, m.host, m.Argv(argv...)...)
	if err != nil {
		return string(out), fmt.Errorf("on %s: %w", m.Name, err)
	}
	return string(out), nil
}

// Start starts a command that runs in the machine until it is stopped, with a log in the lab's scratch folder. Close
// stops it at the latest.
func (m *Machine) Start(ctx context.Context, name string, cmd host.Cmd) (*process.Process, error) {
	cmd.Argv = m.Argv(cmd.Argv...)
	return m.c.startOn(m.host, m.Name, name, cmd)
}

// startOn is Machine.Start for a command that enters the machine's namespaces itself.
func (c *Cluster) startOn(h host.Host, machine, name string, cmd host.Cmd) (*process.Process, error) {
	c.mu.Lock()
	c.seq++
	log := filepath.Join(c.Dir, fmt.Sprintf("%s-%s-%d.log", machine, name, c.seq))
	c.mu.Unlock()
	p, err := process.Start(c.life, h, name+" on "+machine, log, cmd)
	if err != nil {
		return nil, err
	}
	c.onClose(func() error {
		if !p.Running() {
			return nil
		}
		return p.Kill()
	})
	return p, nil
}

// port is the name of the machine's port on one of the switches.
func (m *Machine) port(bridge string) string { return bridge + "-" + m.Name }

// CutLAN detaches the machine's port from the LAN switch. The machine observes no change of its link.
func (m *Machine) CutLAN(ctx context.Context) error { return m.cut(ctx, lanBridge) }

// RestoreLAN reverts CutLAN.
func (m *Machine) RestoreLAN(ctx context.Context) error { return m.restore(ctx, lanBridge) }

// LinkDown removes the carrier from the machine's LAN link.
func (m *Machine) LinkDown(ctx context.Context) error {
	return m.onSwitch(ctx, "link set "+m.port(lanBridge)+" down")
}

// LinkUp reverts LinkDown.
func (m *Machine) LinkUp(ctx context.Context) error {
	return m.onSwitch(ctx, "link set "+m.port(lanBridge)+" up")
}

func (m *Machine) cut(ctx context.Context, bridge string) error {
	return m.onSwitch(ctx, "link set "+m.port(bridge)+" nomaster")
}

func (m *Machine) restore(ctx context.Context, bridge string) error {
	return m.onSwitch(ctx, "link set "+m.port(bridge)+" master "+bridge)
}

// onSwitch runs lines of ip in the switches' namespace.
func (m *Machine) onSwitch(ctx context.Context, lines ...string) error {
	var s script
	s.batch(m.c.ns("net"), lines...)
	if err := s.run(ctx, m.c.kernel); err != nil {
		return fmt.Errorf("change the links of %s: %w", m.Name, err)
	}
	return nil
}
