package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// lab is some nodes on two bridges.
type lab struct {
	hub     netns.NsHandle
	at      *netlink.Handle
	nodes   []*process
	hogs    []*exec.Cmd
	trigger chan struct{}
}

// process is a node: its process, and the nodes it considers dead.
type process struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	trigger chan struct{}

	mu     sync.Mutex
	alive  map[string]bool
	dead   map[string]int64 // time of detection, in nanoseconds of CLOCK_MONOTONIC
	deaths int
	ended  bool
}

func name(i int) string { return "node-" + strconv.Itoa(i+1) }

// inNew runs f on its own thread in a new network namespace, and returns the namespace.
func inNew(f func() error) (ns netns.NsHandle, err error) {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		var err error
		if ns, err = netns.New(); err == nil && f != nil {
			err = f()
		}
		done <- err
	}()
	err = <-done
	return ns, err
}

// newLab starts the nodes. network is the network of memberlist's addresses.
func newLab(n int, system, network string, nice bool) (*lab, error) {
	l := &lab{trigger: make(chan struct{}, 1)}
	var err error
	if l.hub, err = inNew(nil); err != nil {
		return nil, fmt.Errorf("make a network namespace (root?): %w", err)
	}
	if l.at, err = netlink.NewHandleAt(l.hub); err != nil {
		return nil, err
	}
	for _, bridge := range []string{"lan", "mgmt"} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridge
		if err := l.at.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return nil, fmt.Errorf("add bridge %s: %w", bridge, err)
		}
		if err := l.up(bridge, true); err != nil {
			return nil, err
		}
	}
	for i := range n {
		if err := l.add(i, n, system, network, nice); err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

// add creates the namespace of a node, connects it to the bridges and starts its process in it.
func (l *lab) add(i, n int, system, network string, nice bool) error {
	p := &process{alive: map[string]bool{}, dead: map[string]int64{}, trigger: l.trigger}
	p.cmd = exec.Command("/proc/self/exe", "node", system, network, strconv.Itoa(i), strconv.Itoa(n))
	p.cmd.Stderr = os.Stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	ns, err := inNew(func() error {
		here, err := netns.Get()
		if err != nil {
			return err
		}
		defer here.Close()
		if err := l.join(here, i); err != nil {
			return err
		}
		// Without CAP_SYS_NICE a process runs with normal priority.
		if !nice {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_NICE, 0, 0, 0); err != nil {
				return fmt.Errorf("drop CAP_SYS_NICE: %w", err)
			}
		}
		return p.cmd.Start()
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", name(i), err)
	}
	ns.Close()
	go p.read(stdout)
	l.nodes = append(l.nodes, p)
	return nil
}

// join gives a namespace its interfaces: eth0 on the LAN, eth1 on the node network.
func (l *lab) join(here netns.NsHandle, i int) error {
	inside, err := netlink.NewHandleAt(here)
	if err != nil {
		return err
	}
	defer inside.Close()
	for _, j := range []struct{ bridge, iface, prefix string }{{"lan", "eth0", "192.0.2."}, {"mgmt", "eth1", "198.51.100."}} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = j.bridge + strconv.Itoa(i)
		if err := l.at.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: j.iface, PeerNamespace: netlink.NsFd(int(here))}); err != nil {
			return fmt.Errorf("add veth %s: %w", attrs.Name, err)
		}
		link, err := inside.LinkByName(j.iface)
		if err != nil {
			return err
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(j.prefix + strconv.Itoa(i+1)), Mask: net.CIDRMask(24, 32)}}
		if err := inside.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add address to %s: %w", j.iface, err)
		}
		if err := inside.LinkSetUp(link); err != nil {
			return err
		}
		if err := l.master(attrs.Name, j.bridge); err != nil {
			return err
		}
		if err := l.up(attrs.Name, true); err != nil {
			return err
		}
	}
	lo, err := inside.LinkByName("lo")
	if err != nil {
		return err
	}
	return inside.LinkSetUp(lo)
}

func (l *lab) up(iface string, up bool) error {
	link, err := l.at.LinkByName(iface)
	if err != nil {
		return fmt.Errorf("find %s: %w", iface, err)
	}
	if up {
		return l.at.LinkSetUp(link)
	}
	return l.at.LinkSetDown(link)
}

// master attaches a port to a bridge; "" detaches it, which leaves the carrier on both sides.
func (l *lab) master(port, bridge string) error {
	link, err := l.at.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find %s: %w", port, err)
	}
	if bridge == "" {
		return l.at.LinkSetNoMaster(link)
	}
	to, err := l.at.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find %s: %w", bridge, err)
	}
	return l.at.LinkSetMaster(link, to)
}

// cut detaches a node from the LAN, and with all also from the node network, or attaches it again. It returns the time.
func (l *lab) cut(node int, all, cut bool) (when int64, err error) {
	when = monotonic()
	for _, bridge := range []string{"lan", "mgmt"} {
		if bridge == "mgmt" && !all {
			break
		}
		to := bridge
		if cut {
			to = ""
		}
		if err := l.master(bridge+strconv.Itoa(node), to); err != nil {
			return 0, err
		}
	}
	return when, nil
}

// settle waits until every node considers all others alive.
func (l *lab) settle(ctx context.Context) error {
	deadline := time.After(patience)
	for {
		settled := true
		for i, p := range l.nodes {
			p.mu.Lock()
			for j := range l.nodes {
				settled = settled && (i == j || p.alive[name(j)])
			}
			ended := p.ended
			p.mu.Unlock()
			if ended {
				return errEnded
			}
		}
		if settled {
			return nil
		}
		select {
		case <-l.trigger:
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("the nodes have not found one another after %v", patience)
		}
	}
}

// idle waits for a time.
func (l *lab) idle(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waitDead waits until all others consider a node dead, or at most that long.
func (l *lab) waitDead(ctx context.Context, victim int, most time.Duration) {
	deadline := time.After(most)
	for {
		all := true
		for i, p := range l.nodes {
			all = all && (i == victim || p.deadSince(name(victim)) > 0)
		}
		if all {
			return
		}
		select {
		case <-l.trigger:
		case <-ctx.Done():
			return
		case <-deadline:
			return
		}
	}
}

// deadSince returns the time since which the node has considered another dead, 0 if it does not.
func (p *process) deadSince(other string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead[other]
}

func (l *lab) deaths() (n int) {
	for _, p := range l.nodes {
		p.mu.Lock()
		n += p.deaths
		p.mu.Unlock()
	}
	return n
}

// read parses a process's output: "alive NAME WHEN", "dead NAME WHEN".
func (p *process) read(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) != 3 {
			continue
		}
		when, _ := strconv.ParseInt(words[2], 10, 64)
		p.mu.Lock()
		if words[0] == "alive" {
			p.alive[words[1]] = true
			delete(p.dead, words[1])
		} else if p.alive[words[1]] {
			delete(p.alive, words[1])
			p.dead[words[1]] = when
			p.deaths++
		}
		p.mu.Unlock()
		p.notify()
	}
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.notify()
}

func (p *process) notify() {
	select {
	case p.trigger <- struct{}{}:
	default:
	}
}

// hog keeps every core busy.
func (l *lab) hog(n int) error {
	for range n {
		cmd := exec.Command("/proc/self/exe", "hog")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return err
		}
		l.hogs = append(l.hogs, cmd)
	}
	return nil
}

// cpu returns the CPU time of a node's process per second since its start, in milliseconds; the processes end.
func (l *lab) cpu() float64 {
	var used, lived time.Duration
	for _, p := range l.nodes {
		p.stdin.Close()
	}
	for _, p := range l.nodes {
		start := p.began()
		_ = p.cmd.Wait()
		used += p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
		lived += time.Duration(monotonic() - start)
	}
	return float64(used.Microseconds()) / 1000 / lived.Seconds()
}

// began returns the start time of the process, from proc(5): field 22 of stat, in ticks of 10 ms since boot.
func (p *process) began() int64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return monotonic()
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	ticks, _ := strconv.ParseInt(fields[19], 10, 64)
	return ticks * int64(10*time.Millisecond)
}

func (l *lab) close() {
	for _, p := range l.nodes {
		p.stdin.Close()
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
	for _, h := range l.hogs {
		_ = h.Process.Kill()
		_ = h.Wait()
	}
	l.at.Close()
	l.hub.Close()
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}
