package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/bfd"
	"github.com/ironlb/ironlb/speaker/view"
)

const patience = 30 * time.Second

// lab is two nodes on one wire.
type lab struct {
	nodes  []*node
	hogs   []*exec.Cmd
	wire   *wire
	failed chan error
	limits map[string]time.Duration // detection time of each session
}

// node is a process with a Driver.
type node struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}

	mu     sync.Mutex
	status map[string]bfd.Status
}

// sessionName of an interval and a family.
func sessionName(i int, family string) string { return fmt.Sprintf("%d/%s", i, family) }

// address of a side (1, 2) for the session of an interval and a family.
func address(i, side int, family string) netip.Addr {
	if family == "ipv4" {
		return netip.AddrFrom4([4]byte{192, 0, 2, byte(100*side + i)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8::%d:%d", side, i+1))
}

var families = []string{"ipv4", "ipv6"}

// newLab creates the namespaces and starts the nodes.
func newLab(o options, nice bool) (l *lab, err error) {
	l = &lab{failed: make(chan error, 2), limits: map[string]time.Duration{}}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	sources := map[netip.Addr]int{}
	var configs [2]map[string]bfd.Config
	for side := range configs {
		configs[side] = map[string]bfd.Config{}
		for i, interval := range o.intervals {
			for _, family := range families {
				timers := view.BFD{Receive: interval, Transmit: interval, Multiplier: uint8(o.multiplier)}
				name := sessionName(i, family)
				l.limits[name] = time.Duration(o.multiplier) * interval
				configs[side][name] = bfd.Config{Peer: address(i, 2-side, family), Local: address(i, side+1, family), Timers: timers}
				sources[address(i, side+1, family)] = i
			}
		}
	}
	var far netns.NsHandle
	if far, err = inNew(nil); err != nil {
		return l, fmt.Errorf("make a network namespace (root?): %w", err)
	}
	defer far.Close()
	near, err := inNew(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "eth0"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(far))}); err != nil {
			return fmt.Errorf("add the wire: %w", err)
		}
		if err := dress(configs[0]); err != nil {
			return err
		}
		if l.wire, err = watch(o.intervals, sources); err != nil {
			return err
		}
		return l.start(o, configs[0], nice)
	})
	if err != nil {
		return l, err
	}
	near.Close()
	return l, in(far, func() error {
		if err := dress(configs[1]); err != nil {
			return err
		}
		return l.start(o, configs[1], nice)
	})
}

// inNew runs f on its own thread in a new network namespace, and returns the namespace.
func inNew(f func() error) (ns netns.NsHandle, err error) {
	err = onThread(func() error {
		if ns, err = netns.New(); err != nil || f == nil {
			return err
		}
		return f()
	})
	return ns, err
}

// in runs f on its own thread in a network namespace.
func in(ns netns.NsHandle, f func() error) error {
	return onThread(func() error {
		if err := netns.Set(ns); err != nil {
			return err
		}
		return f()
	})
}

func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// dress adds the local addresses to eth0 of the thread's namespace.
func dress(configs map[string]bfd.Config) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find the wire: %w", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the wire up: %w", err)
	}
	for _, c := range configs {
		bits := map[bool]string{true: "/24", false: "/64"}[c.Local.Is4()]
		a, err := netlink.ParseAddr(c.Local.String() + bits)
		if err != nil {
			return err
		}
		if c.Local.Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("add %v: %w", c.Local, err)
		}
	}
	return nil
}

// start starts a node in the thread's namespace. Without nice it has normal priority.
func (l *lab) start(o options, configs map[string]bfd.Config, nice bool) error {
	n := &node{cmd: exec.Command("/proc/self/exe", "node", strconv.Itoa(o.inside), o.collect), done: make(chan struct{})}
	n.cmd.Stderr = os.Stderr
	stdout, err := n.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	stdin, err := n.cmd.StdinPipe()
	if err != nil {
		return err
	}
	n.stdin = stdin
	if !nice {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_NICE, 0, 0, 0); err != nil {
			return fmt.Errorf("drop CAP_SYS_NICE: %w", err)
		}
	}
	if err := n.cmd.Start(); err != nil {
		return fmt.Errorf("start a node: %w", err)
	}
	l.nodes = append(l.nodes, n)
	go func() {
		defer close(n.done)
		err := n.read(json.NewDecoder(stdout))
		if err != io.EOF {
			l.failed <- fmt.Errorf("read the output of a node: %w", err)
		}
	}()
	return json.NewEncoder(stdin).Encode(configs)
}

// read keeps the node's reports.
func (n *node) read(d *json.Decoder) error {
	for {
		var all map[string]bfd.Status
		if err := d.Decode(&all); err != nil {
			return err
		}
		n.mu.Lock()
		n.status = all
		n.mu.Unlock()
	}
}

// settle waits until all sessions are up with their timers.
func (l *lab) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !l.up() {
		select {
		case <-ticker.C:
		case err := <-l.failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("wait for the sessions to come up: %w", ctx.Err())
		}
	}
	return nil
}

func (l *lab) up() bool {
	for _, n := range l.nodes {
		n.mu.Lock()
		status := maps.Clone(n.status)
		n.mu.Unlock()
		for name, limit := range l.limits {
			if s := status[name]; s.State != view.BFDUp || s.Detection != limit {
				return false
			}
		}
	}
	return true
}

// downs returns how often each session of each node went down.
func (l *lab) downs() map[string]uint64 {
	all := map[string]uint64{}
	for i, n := range l.nodes {
		n.mu.Lock()
		for name, s := range n.status {
			all[fmt.Sprintf("%s/%d", name, i)] = s.Downs
		}
		n.mu.Unlock()
	}
	return all
}

// hog keeps the cores busy.
func (l *lab) hog(n int) error {
	for range n {
		cmd := exec.Command("/proc/self/exe", "hog")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := onThread(func() error {
			runtime.LockOSThread()
			return cmd.Start()
		}); err != nil {
			return err
		}
		l.hogs = append(l.hogs, cmd)
	}
	return nil
}

// stop ends the nodes, and returns the CPU time of both and the larger memory of the two in megabytes.
func (l *lab) stop() (cpu time.Duration, rss float64) {
	for _, n := range l.nodes {
		n.stdin.Close()
	}
	for _, n := range l.nodes {
		<-n.done
		_ = n.cmd.Wait()
		cpu += n.cmd.ProcessState.UserTime() + n.cmd.ProcessState.SystemTime()
		if u, ok := n.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			rss = max(rss, float64(u.Maxrss)/1024)
		}
	}
	l.nodes = nil
	return cpu, rss
}

func (l *lab) close() {
	l.stop()
	for _, h := range l.hogs {
		_ = h.Process.Kill()
		_ = h.Wait()
	}
	l.hogs = nil
	if l.wire != nil {
		l.wire.close()
	}
}

// quantile returns the nearest rank, in milliseconds.
func quantile(all []time.Duration, q float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(all))
	return float64(s[max(0, int(math.Ceil(q*float64(len(s))))-1)].Microseconds()) / 1000
}

// child is the process of a node, or a process that keeps a core busy. A node ends with its standard input.
func child(args []string) error {
	if args[0] == "hog" {
		runtime.GOMAXPROCS(1)
		for start := time.Now(); time.Since(start) < 24*time.Hour; {
		}
		return nil
	}
	inside, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if args[2] == "rarely" {
		bfd.CollectRarely(64 << 20)
	}
	input := json.NewDecoder(os.Stdin)
	var configs map[string]bfd.Config
	if err := input.Decode(&configs); err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	output := json.NewEncoder(os.Stdout)
	d := bfd.New(bfd.Options{Log: logger(), Independent: true, Changed: func(all map[string]bfd.Status) { _ = output.Encode(all) }})
	d.Set(configs)
	for range inside {
		go garbage(ctx)
	}
	return d.Run(ctx)
}

// garbage allocates memory, as a goroutine that reads and writes messages does.
func garbage(ctx context.Context) {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	heap := make([][]byte, 1<<12)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for at := range heap {
			heap[at] = make([]byte, 512)
		}
	}
}
