package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/speaker/link"
	"github.com/ironlb/ironlb/speaker/link/dump"
)

const (
	// routesMost limits the routes of a family: a node in a fabric may have a million.
	routesMost = 10000
	// nftMost limits the memory of the program nft, which shares that of the container with the speaker.
	nftMost = 192 << 20
)

type linkDump struct {
	Name      string   `json:"name"`
	Index     int      `json:"index"`
	Type      string   `json:"type"`
	State     string   `json:"state"`
	Flags     string   `json:"flags"`
	MAC       string   `json:"mac,omitempty"`
	MTU       int      `json:"mtu"`
	Master    string   `json:"master,omitempty"`
	Addresses []string `json:"addresses"`
}

type routeDump struct {
	To       string   `json:"to"`
	Via      []string `json:"via,omitempty"`
	Devices  []string `json:"devices,omitempty"`
	Source   net.IP   `json:"source,omitempty"`
	Table    int      `json:"table"`
	Type     string   `json:"type"`
	Protocol string   `json:"protocol"`
	Scope    string   `json:"scope"`
	Metric   int      `json:"metric,omitempty"`
}

type neighborDump struct {
	Addr   net.IP `json:"address"`
	Device string `json:"device"`
	MAC    string `json:"mac,omitempty"`
	State  string `json:"state"`
}

// dumpNode writes the state of the kernel that forwarding relies on, in the network namespace of the calling thread.
func dumpNode(ctx context.Context, o *object) {
	devices := putLinks(o)
	putRoutes(o, devices)
	putNeighbors(o, devices)
	putTables(ctx, o)
	servers, err := ipvsLines()
	o.put("ipvs", servers, err)
	parameters, err := sysctlValues()
	o.put("sysctls", parameters, err)
}

// putLinks writes the interfaces with their addresses, and returns the names by index.
func putLinks(o *object) map[int]string {
	links, linksErr := dump.Complete(netlink.LinkList)
	addrs, err := dump.Complete(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err = errors.Join(linksErr, err); err != nil {
		err = fmt.Errorf("list interfaces and addresses: %w", err)
	}
	devices, of := map[int]string{}, map[int][]string{}
	for _, l := range links {
		devices[l.Attrs().Index] = l.Attrs().Name
	}
	for _, a := range addrs {
		of[a.LinkIndex] = append(of[a.LinkIndex], a.IPNet.String())
	}
	out := make([]linkDump, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		out = append(out, linkDump{Name: a.Name, Index: a.Index, Type: l.Type(), State: a.OperState.String(), Flags: a.Flags.String(), MTU: a.MTU,
			MAC: a.HardwareAddr.String(), Master: devices[a.MasterIndex], Addresses: of[a.Index]})
	}
	o.put("links", out, err)
	return devices
}

// putRoutes writes the routes of all tables, and the rules.
func putRoutes(o *object, devices map[int]string) {
	out, rules := []routeDump{}, []string{}
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		more := false
		routes, err := dump.Complete(func() (all []netlink.Route, err error) {
			err = netlink.RouteListFilteredIter(family, &netlink.Route{}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
				if more = len(all) == routesMost; !more {
					all = append(all, r)
				}
				return !more
			})
			return all, err
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("list routes: %w", err))
		}
		if more {
			errs = append(errs, fmt.Errorf("only the first %d routes of a family are listed", routesMost))
		}
		for _, r := range routes {
			out = append(out, dumpRoute(r, devices))
		}
		all, err := dump.Complete(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		if err != nil {
			errs = append(errs, fmt.Errorf("list routing rules: %w", err))
		}
		for _, r := range all {
			rules = append(rules, r.String())
		}
	}
	o.put("routes", out, errors.Join(errs...))
	o.put("rules", rules, nil)
}

// routeTypes are the names of ip-route(8).
var routeTypes = map[int]string{
	unix.RTN_UNICAST: "unicast", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_ANYCAST: "anycast",
	unix.RTN_MULTICAST: "multicast", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit",
}

func dumpRoute(r netlink.Route, devices map[int]string) routeDump {
	d := routeDump{To: "default", Source: r.Src, Table: r.Table, Type: routeTypes[r.Type],
		Protocol: r.Protocol.String(), Scope: r.Scope.String(), Metric: r.Priority}
	if r.Dst != nil {
		d.To = r.Dst.String()
	}
	hops := append([]*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}, r.MultiPath...)
	for _, hop := range hops {
		switch {
		case hop.Via != nil:
			d.Via = append(d.Via, hop.Via.String())
		case hop.Gw != nil:
			d.Via = append(d.Via, hop.Gw.String())
		}
		if hop.LinkIndex != 0 {
			d.Devices = append(d.Devices, devices[hop.LinkIndex])
		}
	}
	return d
}

// neighborStates are the names of ip-neighbor(8).
var neighborStates = map[int]string{
	netlink.NUD_INCOMPLETE: "incomplete", netlink.NUD_REACHABLE: "reachable", netlink.NUD_STALE: "stale", netlink.NUD_DELAY: "delay",
	netlink.NUD_PROBE: "probe", netlink.NUD_FAILED: "failed", netlink.NUD_NOARP: "noarp", netlink.NUD_PERMANENT: "permanent",
}

func putNeighbors(o *object, devices map[int]string) {
	out := []neighborDump{}
	all, err := dump.Complete(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		err = fmt.Errorf("list neighbors: %w", err)
	}
	for _, n := range all {
		if n.State != netlink.NUD_NOARP {
			out = append(out, neighborDump{Addr: n.IP, Device: devices[n.LinkIndex], MAC: n.HardwareAddr.String(), State: neighborStates[n.State]})
		}
	}
	o.put("neighbors", out, err)
}

// putTables writes IronLB's nftables tables as nft prints them, one field each.
func putTables(ctx context.Context, o *object) {
	tables, err := ourTables(ctx)
	o.put("tables", tables, err)
	for _, table := range tables {
		text, err := listTable(ctx, table, nftMemory("/sys/fs/cgroup"))
		o.put("nftables "+table, text, err)
	}
}

// nftMemory is what nft may use: half of what the container has left, whose limit is that of a cgroup of version 2 or 1.
func nftMemory(cgroups string) uint64 {
	for _, files := range [][2]string{{"memory.max", "memory.current"}, {"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"}} {
		limit, limitErr := readNumber(filepath.Join(cgroups, files[0]))
		used, usedErr := readNumber(filepath.Join(cgroups, files[1]))
		if limitErr == nil && usedErr == nil { // else there is no limit
			return min(nftMost, (max(limit, used)-used)/2)
		}
	}
	return nftMost
}

func readNumber(file string) (uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// listTable returns what nft prints about a table. Its output has at most an eighth of the memory of nft, since this
// process needs it three times to write it.
func listTable(ctx context.Context, table string, memory uint64) (json.RawMessage, error) {
	out, stderr := &capped{most: int(memory / 8)}, &capped{most: 64 << 10}
	cmd := exec.CommandContext(ctx, "nft", append([]string{"--json", "list", "table"}, strings.Fields(table)...)...)
	cmd.Stdout, cmd.Stderr = out, stderr
	err := cmd.Start()
	if err == nil {
		limit := unix.Rlimit{Cur: memory, Max: memory}
		err = errors.Join(unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_AS, &limit, nil), cmd.Wait())
	}
	if err != nil {
		return nil, fmt.Errorf("nft list table %s with at most %d MiB of memory and %d KiB of output (chart value speaker.resources): %w: %s",
			table, memory>>20, out.most>>10, err, bytes.TrimSpace(stderr.data))
	}
	return out.data, nil
}

// capped is a buffer with a limit. It is no bytes.Buffer, whose method ReadFrom has none.
type capped struct {
	most int
	data []byte
}

func (c *capped) Write(p []byte) (int, error) {
	if len(c.data)+len(p) > c.most {
		return 0, fmt.Errorf("more than %d bytes", c.most)
	}
	c.data = append(c.data, p...)
	return len(p), nil
}

// ipvsLines returns the virtual servers of IPVS as ipvsadm prints them, none if the kernel has not loaded IPVS.
func ipvsLines() ([]string, error) {
	k, err := kernel.OpenLoaded()
	if errors.Is(err, ipvs.ErrNoModule) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer k.Close()
	table, err := k.List()
	return strings.Split(strings.TrimSpace(table.String()), "\n"), err
}

// sysctlValues returns the parameters that the speaker may need and the kernel has, and rp_filter.
func sysctlValues() (map[string]string, error) {
	wanted, err := link.Wanted(link.Needs{IPVS: true, IPv6: true, ServiceProxy: true})
	values := map[string]string{}
	for _, s := range wanted {
		if value, err := s.Read(); err == nil {
			values[s.Key] = value
		}
	}
	const filters = "/proc/sys/net/ipv4/conf/*/rp_filter"
	paths, _ := filepath.Glob(filters) // the pattern is well-formed
	for _, path := range paths {
		if value, err := os.ReadFile(path); err == nil { // else the interface is gone
			values[strings.NewReplacer("/", ".", ".", "/").Replace(path[len("/proc/sys/"):])] = strings.TrimSpace(string(value))
		}
	}
	return values, err
}
