package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/router"
)

// tables passes a full table to a separate ironlb-bgpd, which replaces the last node's.
func (b *bench) tables(ctx context.Context) error {
	n := b.c.Node(len(b.c.Nodes) - 1)
	if err := errors.Join(n.KillSpeaker(), n.KillBGP()); err != nil {
		return err
	}
	peers := map[string]*routes.Peer{}
	for _, r := range b.tors {
		c := r.config(nil, router.Neighbor{})
		c.Neighbors = []router.Neighbor{{Name: n.Name, Address: n.Addr6, ASN: nodeASN}}
		if err := r.Configure(ctx, c); err != nil {
			return err
		}
		peers[r.name] = &routes.Peer{Address: r.machine.Addr6, Port: 179, MyASN: nodeASN, PeerASN: routerASN, ConnectTime: time.Second, IPv6: true}
	}
	full := routes.Change{Full: true, RouterID: n.Addr, Peers: peers, Routes: b.prefixes()}
	var applied []time.Duration
	tables, gone := map[*tor][]time.Duration{}, map[*tor][]time.Duration{}
	used := map[string]float64{}
	for i := range b.o.tables {
		u, err := b.table(ctx, n, full, tables, gone)
		if err != nil {
			return fmt.Errorf("round %d: %w", i+1, err)
		}
		line := fmt.Sprintf("prefixes %d/%d: cpu %v, parent %.1f MB, children %.1f MB;", i+1, b.o.tables, u.cpu, u.parent, u.children)
		for _, r := range b.tors {
			line += fmt.Sprintf(" %s has all after %v, none after %v;", r.name, tables[r][i], gone[r][i])
		}
		fmt.Fprintln(os.Stderr, line)
		applied = append(applied, u.cpu)
		used["parent-rss-MB"], used["children-rss-MB"] = max(used["parent-rss-MB"], u.parent), max(used["children-rss-MB"], u.children)
	}
	used["cpu-p50-ms"] = ms(quantile(applied, 0.5))
	for _, r := range b.tors {
		result(fmt.Sprintf("prefixes=%d/all/%s", b.o.prefixes, r.name), tables[r], used)
		result(fmt.Sprintf("prefixes=%d/none/%s", b.o.prefixes, r.name), gone[r], nil)
	}
	return nil
}

// prefixes returns IPv6 addresses with a few sets of attributes, as of that many Services, advertised to all routers.
func (b *bench) prefixes() map[netip.Prefix]routes.Route {
	prefixes := map[netip.Prefix]routes.Route{}
	a := netip.MustParseAddr("2001:db8:e::").As16()
	for i := range b.o.prefixes {
		binary.BigEndian.PutUint32(a[12:], uint32(i+1))
		route := routes.Route{}
		for _, r := range b.tors {
			route[r.name] = view.Attributes{Communities: view.NewCommunitySet(nodeASN<<16 | uint32(i%4))}
		}
		prefixes[netip.PrefixFrom(netip.AddrFrom16(a), 128)] = route
	}
	return prefixes
}

// usage of ironlb-bgpd and its children, one for each router.
type usage struct {
	cpu              time.Duration // total, until the routers had all
	parent, children float64       // maximum memory, in MB; that of the children together
}

func (b *bench) table(ctx context.Context, n *lab.Node, full routes.Change, tables, gone map[*tor][]time.Duration) (u usage, err error) {
	if err := n.StartBGP(ctx); err != nil {
		return u, err
	}
	defer func() { err = errors.Join(err, n.KillBGP()) }()
	client := bgp.NewClient(bgp.ClientOptions{Socket: n.BGPSocket(), Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), Wake: func() {}})
	life, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- client.Run(life) }()
	defer func() { end(); err = errors.Join(err, <-ended) }()
	began := time.Now()
	client.Set(full)
	if err := b.all(ctx, began, false, tables); err != nil {
		return u, err
	}
	if u, err = used(ctx, n); err != nil {
		return u, err
	}
	none := routes.Change{RouterID: full.RouterID, Routes: map[netip.Prefix]routes.Route{}}
	for prefix := range full.Routes {
		none.Routes[prefix] = nil
	}
	began = time.Now()
	client.Set(none)
	return u, b.all(ctx, began, true, gone)
}

// all waits until every router's kernel has all prefixes, or none, and records the time of the last change. A busy
// kernel drops some messages to a monitor, so the table itself shows whether the change was the last.
func (b *bench) all(ctx context.Context, began time.Time, deleted bool, took map[*tor][]time.Duration) error {
	want := b.o.prefixes
	if deleted {
		want = 0
	}
	for _, r := range b.tors {
		var last time.Time
		err := b.c.Eventually(ctx, patience, fmt.Sprintf("%s has %d prefixes", r.name, want), func(ctx context.Context) error {
			changes := 0
			for _, e := range r.monitor.Events() {
				if e.Deleted == deleted && !e.At.Before(began) && e.Prefix.Addr().Is6() && e.Prefix.Bits() == 128 {
					changes++
					last = e.At
				}
			}
			if changes < b.o.prefixes && time.Since(last) < time.Second {
				return fmt.Errorf("%d changes", changes)
			}
			prefixes, err := r.Routes(ctx, 6)
			if err == nil && len(prefixes) != want {
				err = fmt.Errorf("it has %d", len(prefixes))
			}
			return err
		})
		if err != nil {
			return err
		}
		took[r] = append(took[r], last.Sub(began))
	}
	return nil
}

// used reads the usage of the node's processes.
func used(ctx context.Context, n *lab.Node) (u usage, err error) {
	parent := n.BGP().Pid()
	out, err := n.Exec(ctx, "pgrep", "-P", fmt.Sprint(parent))
	if err != nil {
		return u, err
	}
	pids := []int{parent}
	for text := range strings.FieldsSeq(out) {
		child, err := strconv.Atoi(text)
		if err != nil {
			return u, fmt.Errorf("read the children of ironlb-bgpd: %w", err)
		}
		pids = append(pids, child)
	}
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return u, err
		}
		var user, system int64
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
			return u, fmt.Errorf("read the processor time of %d: %w", pid, err)
		}
		u.cpu += time.Duration(user+system) * time.Second / 100 // USER_HZ
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return u, err
		}
		for line := range strings.Lines(string(status)) {
			if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
				var rss float64 // in kB
				if _, err := fmt.Sscan(text, &rss); err != nil {
					return u, fmt.Errorf("read the memory of %d: %w", pid, err)
				}
				if pid == parent {
					u.parent = rss / 1024
				} else {
					u.children += rss / 1024
				}
			}
		}
	}
	return u, nil
}
