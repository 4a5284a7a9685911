package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/ironlb/ironlb/speaker/member"
)

// allSystems are the systems to compare.
var allSystems = []string{"ironlb-standard", "ironlb-fast", "memberlist-200-100", "memberlist-100-50"}

// child is a node's process, or a process that keeps a core busy. It ends with its standard input.
func child(args []string) error {
	if args[0] == "hog" {
		runtime.GOMAXPROCS(1)
		for start := time.Now(); time.Since(start) < time.Hour; {
		}
		return nil
	}
	if len(args) != 5 {
		return fmt.Errorf("node: %d arguments", len(args))
	}
	self, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if rest, ok := strings.CutPrefix(args[1], "memberlist-"); ok {
		return runMemberlist(ctx, rest, args[2], self, n)
	}
	return runOurs(ctx, strings.TrimPrefix(args[1], "ironlb-"), self, n)
}

var printing sync.Mutex

func report(what, who string) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(what, who, monotonic())
}

// runOurs runs a Detector and prints the live nodes on the LAN.
func runOurs(ctx context.Context, profile string, self, n int) error {
	p, err := member.ProfileNamed(profile)
	if err != nil {
		return err
	}
	wake := make(chan struct{}, 1)
	d, err := member.New(member.Options{
		Node: name(self), Cluster: "bench", Keys: [][]byte{bytes.Repeat([]byte("k"), 32)}, Profile: p, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Wake: func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	peers := map[string][]netip.Addr{}
	for i := range n {
		peers[name(i)] = []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})}
	}
	d.SetPeers(peers)
	d.SetSegments([]string{"eth0"})
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	alive := map[string]bool{}
	for {
		select {
		case err := <-ended:
			return err
		case <-wake:
		}
		members, nodes, _ := d.Observe()
		for node := range nodes {
			_, on := members.Peers[node].On["eth0"]
			if on == alive[node] {
				continue
			}
			alive[node] = on
			if on {
				report("alive", node)
			} else {
				report("dead", node)
			}
		}
	}
}

// events prints memberlist's events.
type events struct{ self string }

func (e events) NotifyJoin(n *memberlist.Node) {
	if n.Name != e.self {
		report("alive", n.Name)
	}
}
func (e events) NotifyLeave(n *memberlist.Node) { report("dead", n.Name) }
func (e events) NotifyUpdate(*memberlist.Node)  {}

// runMemberlist runs memberlist with the settings given: probe interval and timeout in milliseconds.
func runMemberlist(ctx context.Context, settings, network string, self, n int) error {
	var interval, timeout int
	if _, err := fmt.Sscanf(settings, "%d-%d", &interval, &timeout); err != nil {
		return fmt.Errorf("memberlist settings %q: %w", settings, err)
	}
	prefix := map[string]string{"lan": "192.0.2.", "mgmt": "198.51.100."}[network]
	c := memberlist.DefaultLANConfig()
	c.Name, c.BindAddr, c.AdvertiseAddr = name(self), prefix+strconv.Itoa(self+1), prefix+strconv.Itoa(self+1)
	c.SecretKey = bytes.Repeat([]byte("k"), 32)
	c.ProbeInterval, c.ProbeTimeout = time.Duration(interval)*time.Millisecond, time.Duration(timeout)*time.Millisecond
	c.SuspicionMult, c.SuspicionMaxTimeoutMult, c.AwarenessMaxMultiplier = 2, 2, 2
	c.GossipInterval = 50 * time.Millisecond
	if interval <= 100 {
		c.GossipInterval = 20 * time.Millisecond
	}
	c.Events = events{c.Name}
	c.Logger = log.New(io.Discard, "", 0)
	list, err := memberlist.Create(c)
	if err != nil {
		return err
	}
	defer func() { _ = list.Shutdown() }()
	var others []string
	for i := range n {
		if i != self {
			others = append(others, prefix+strconv.Itoa(i+1))
		}
	}
	// A node that was cut off is found again only by joining, which must be requested.
	ticker := time.NewTicker(300 * time.Millisecond)
	defer ticker.Stop()
	for {
		if list.NumMembers() < n {
			_, _ = list.Join(others)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
