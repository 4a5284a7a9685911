package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/lab/process"
	"github.com/ironlb/ironlb/test/lab/steady"
)

// keepalived owns each address by a VRRP instance of its own, on all candidates.
type keepalived struct {
	b        *bench
	family   string
	interval string // advert_int

	running, answering map[*lab.Node]*process.Process
}

// version returns the version of VRRP: 2 is keepalived's default, and only for IPv4 and intervals of full seconds.
func (k *keepalived) version() int {
	if k.family == "ipv4" && k.interval == "1" {
		return 2
	}
	return 3
}

// config returns a node's configuration. For each address another node has the highest priority.
func (k *keepalived) config(node int) string {
	var s strings.Builder
	fmt.Fprintf(&s, "global_defs {\n  router_id %s\n  vrrp_version %d\n}\n", k.b.nodes[node].Name, k.version())
	for i, addr := range k.addrs() {
		place := (node - i%len(k.b.nodes) + len(k.b.nodes)) % len(k.b.nodes)
		fmt.Fprintf(&s, `vrrp_instance v%[1]d {
  state BACKUP
  nopreempt
  interface eth0
  virtual_router_id %[2]d
  priority %[3]d
  advert_int %[4]s
  virtual_ipaddress {
%[5]s  }
}
`, i, 51+i, 150-25*place, k.interval, k.addresses(addr, i))
	}
	return s.String()
}

// addresses returns the addresses of an instance. With IPv6 the first must be link-local (RFC 5798 5.2.9).
func (k *keepalived) addresses(addr netip.Addr, i int) string {
	if addr.Is4() {
		return fmt.Sprintf("    %v/32\n", addr)
	}
	return fmt.Sprintf("    fe80::5e:%x/64\n    %v/128\n", i+1, addr)
}

func (k *keepalived) start(ctx context.Context) error {
	k.running, k.answering = map[*lab.Node]*process.Process{}, map[*lab.Node]*process.Process{}
	for _, n := range k.b.nodes {
		if err := k.startOn(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// startOn starts keepalived, and the program that answers at its addresses.
func (k *keepalived) startOn(ctx context.Context, n *lab.Node) (err error) {
	if p := k.running[n]; p != nil {
		if err := p.Stop(10 * time.Second); err != nil { // it has received SIGTERM
			return err
		}
	}
	if p := k.answering[n]; p == nil || !p.Running() {
		if k.answering[n], err = n.Start(ctx, "labpod", host.Cmd{Argv: []string{k.b.c.Program("labpod"), "serve", n.Name}}); err != nil {
			return err
		}
	}
	// An empty folder: a PID file of a killed keepalived may name another process by now.
	dir := filepath.Join(k.b.c.Dir, "keepalived-"+n.Name)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return fmt.Errorf("configure keepalived on %s: %w", n.Name, err)
	}
	conf := filepath.Join(dir, "keepalived.conf")
	if err := os.WriteFile(conf, []byte(k.config(k.b.index(n))), 0o600); err != nil {
		return fmt.Errorf("configure keepalived on %s: %w", n.Name, err)
	}
	k.running[n], err = n.Start(ctx, "keepalived", host.Cmd{Argv: []string{
		"keepalived", "--dont-fork", "--log-console", "--vrrp", "--use-file", conf,
		"--pid", filepath.Join(dir, "keepalived.pid"), "--vrrp_pid", filepath.Join(dir, "vrrp.pid")}})
	return err
}

func (k *keepalived) stop(context.Context) error {
	var errs []error
	for _, n := range k.b.nodes {
		for _, p := range []*process.Process{k.running[n], k.answering[n]} {
			if p != nil {
				errs = append(errs, p.Kill())
			}
		}
	}
	return errors.Join(errs...)
}

// signal sends a signal to the process group: keepalived's VRRP is a child process.
func (k *keepalived) signal(n *lab.Node, s syscall.Signal) error {
	if s == syscall.SIGTERM { // as systemctl stop: the parent forwards it
		return k.running[n].Signal(s)
	}
	if err := syscall.Kill(-k.running[n].Pid(), s); err != nil {
		return fmt.Errorf("send %s to keepalived on %s: %w", s, n.Name, err)
	}
	return nil
}

// ready: each instance has reached a state since its start.
func (k *keepalived) ready(_ context.Context, n *lab.Node) error {
	p := k.running[n]
	if p == nil || !p.Running() {
		return errors.New("keepalived does not run")
	}
	log, err := os.ReadFile(p.Log)
	if err != nil {
		return err
	}
	if have := strings.Count(string(log), "Entering BACKUP STATE (init)"); have < len(k.addrs()) {
		return fmt.Errorf("%d of %d instances of keepalived have started", have, len(k.addrs()))
	}
	return nil
}

func (k *keepalived) has(fault string) bool { return fault != "drain" && fault != "power-off-no-api" }

// addrs returns the first free addresses of the LAN, those that IronLB's pool assigns.
func (k *keepalived) addrs() (out []netip.Addr) { return k.b.free(k.family) }

func (k *keepalived) clusterIP(netip.Addr) netip.Addr { return netip.Addr{} }

func (k *keepalived) target(addr netip.Addr) steady.Target {
	return steady.Target{UDP: netip.AddrPortFrom(addr, probe.PortUDP), TCP: netip.AddrPortFrom(addr, probe.PortStream)}
}
