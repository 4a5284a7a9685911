package plan

import (
	"bufio"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/incremental"
	"github.com/ironlb/ironlb/speaker/view"
)

var update = flag.Bool("update", false, "rewrite the expected plans in testdata")

// TestScenarios runs testdata/*.txt. A file is a sequence of commands. Each of these five is followed by its expected
// output, indented by a tab:
//
//	plan NODE                                  the plan of the node
//	trace NODE SOURCE PROTO ADDR:PORT          the path of a packet on the node
//	who NODE...                                the decisions of these nodes about VirtualIPs, in this order
//	bgp NODE                                   the changes of the node's BGP since the last bgp command
//	health NODE                                the health check ports of the node
//
// SOURCE is an address, with %INTERFACE if that matters, or self for a process on the node. The others receive the last
// published claims of a node. The View stays from one plan to the next, and so does each node's Planner until
//
//	restart
//	options [external=CIDR,...] [apiserver=IP] [serviceproxy] [scheduler=NAME] [flags=N] [nodeports=CIDR,...]
//	  [pods=CIDR,...] [detect=MODE[:INTERFACE]] [drain=DURATION] [reset=DURATION] [endpointchecks]
//
// The other commands change the time or the View:
//
//	later DURATION
//
//	unreachable|reachable NODE...   for every node that plans
//
//	node NAME [nonetwork] [ready] [deleted] [stopping] [addr=IP,...] [reached=IP,...] [pods=CIDR,...] [in=ZONE]
//	  [excluded] [LABEL=VALUE...]
//	host IP...
//	gateways IP...|-
//	service NS/NAME ADDR,... [PORTNAME/PROTO/PORT[/NODEPORT]...] [local] [internal-local] [nodeports] [health=PORT]
//	  [label=KEY=VALUE]... [ranges=CIDR,...] [scheduler=NAME] [flags=N] [forwarding=nodeport|direct] [families=4|6]
//	  [affinity=SECONDS] [created=N]
//	slice NS/NAME SLICE PORTNAME/PROTO/PORT,...|-
//	  [IP[@NODE][=notready|=terminating|=gone][~nodes:A,B][~zones:A,B]...]
//	check NODE ADDR:PORT/PATH healthy|failed [WEIGHT]
//	check endpoint ADDR:PORT
//	network NAME CIDR,...
//	other NS/NAME
//	vip NAME IP,... NS/NAME,... [NODE...] [owner=NODE] [contested] [generation=N]
//	advertise NAME [pools=A,B] [poolsel=LABEL=VALUE]... [services=LABEL=VALUE]... [interfaces=A,B]
//	  [nodes=LABEL=VALUE]...
//	pool NAME [range=FIRST[-LAST]]... [created=N] [LABEL=VALUE]...
//	peer NAME ADDRESS [FIELD[=VALUE]]...
//	route NAME [pools=A,B] [poolsel=LABEL=VALUE]... [services=LABEL=VALUE]... [nodes=LABEL=VALUE]... [FIELD=VALUE]...
//	delete KIND NAME [SLICE]
//
// ADDR is IP[@POOL] for a LoadBalancer address, announce:IP[@POOL] for one that kube-proxy forwards, foreign:IP for one
// of another controller, cluster:IP or external:IP; a hyphen means none. Commands about speakers are at stationCommand.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScenario(t, file) })
	}
}

func runScenario(t *testing.T, file string) {
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture()
	var out strings.Builder
	for lines := bufio.NewScanner(strings.NewReader(string(before))); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "\t") {
			continue // an expected output, which is generated again
		}
		out.WriteString(line + "\n")
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(line, "#"):
		case words[0] == "plan":
			for _, l := range strings.Split(strings.TrimRight(text(f.plan(words[1])), "\n"), "\n") {
				out.WriteString("\t" + l + "\n")
			}
		case words[0] == "health":
			for l := range strings.Lines(text(f.plan(words[1]))) {
				if strings.HasPrefix(l, "healthCheckNodePort") {
					out.WriteString("\t" + l)
				}
			}
		case words[0] == "who":
			for _, l := range f.owners(words[1:]) {
				out.WriteString("\t" + l + "\n")
			}
		case words[0] == "bgp":
			for _, l := range f.bgp(words[1]) {
				out.WriteString("\t" + l + "\n")
			}
		case words[0] == "trace":
			out.WriteString("\t" + f.trace(words[1:]) + "\n")
		default:
			if err := f.command(words); err != nil {
				t.Fatalf("%s: %s: %v", file, line, err)
			}
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(before), out.String()); diff != "" {
		t.Errorf("the plan differs from %s (-expected +planned):\n%s", file, diff)
	}
}

func serviceKey(text string) pools.ServiceKey {
	ns, name, _ := strings.Cut(text, "/")
	return pools.ServiceKey{Namespace: ns, Name: name}
}

// fixture is the state that a scenario changes.
type fixture struct {
	view     *view.View
	options  Options
	now      time.Time
	planners map[string]*Planner
	stations map[string]*station
	// published is the BGP text of each node at the last bgp command.
	published map[string][]string
}

// newFixture returns a fixture whose nodes have two interfaces.
func newFixture() *fixture {
	v := view.New()
	v.Links["eth0"] = view.Link{Name: "eth0", Subnets: prefixes("203.0.113.0/24,2001:db8::/64")}
	v.Links["eth1"] = view.Link{Name: "eth1"}
	return &fixture{view: v, options: defaultOptions(), now: time.Unix(0, 0), planners: map[string]*Planner{}, stations: map[string]*station{}}
}

// defaultOptions accept the external IPs of most scenarios.
func defaultOptions() Options {
	return Options{BGP: true, Options: forwarding.Options{ExternalIPs: prefixes("203.0.113.200/29")}}
}

func (f *fixture) plan(node string) *Desired {
	if f.planners[node] == nil {
		o := f.options
		o.Node = node
		f.planners[node] = NewPlanner(o)
	}
	d, _ := f.planners[node].Plan(f.viewOf(node), view.Touched{All: true}, f.now)
	f.observe(node, d)
	return d
}

func (f *fixture) trace(words []string) string {
	d := f.plan(words[0])
	n := ipvstest.Node{Local: d.Local, Filter: d.Filter, Table: d.Table, ClusterInternal: d.ClusterInternal, Own: map[netip.Addr]struct{}{}}
	for _, a := range f.view.Nodes[words[0]].Addresses {
		n.Own[a] = struct{}{}
	}
	client := ipvstest.Client{Self: words[1] == "self"}
	if !client.Self {
		addr, via, _ := strings.Cut(words[1], "%")
		client.Addr, client.Via = netip.MustParseAddr(addr), via
	}
	at := netip.MustParseAddrPort(words[3])
	return n.TraceFrom(client, ipvs.Key{Addr: at.Addr(), Protocol: protocols[words[2]], Port: at.Port()})
}

// settings runs a command about options, time or reachability, and reports whether it was one.
func (f *fixture) settings(words []string) bool {
	switch words[0] {
	case "later":
		f.now = f.now.Add(duration(words[1]))
		return true
	case "options":
		f.options = defaultOptions()
		for _, option := range words[1:] {
			switch key, value, _ := strings.Cut(option, "="); key {
			case "serviceproxy":
				f.options.ServiceProxy = true
			case "scheduler":
				f.options.Scheduler = value
			case "flags":
				f.options.Flags = ipvs.Flags(atoi(value))
			case "nodeports":
				f.options.NodePortCIDRs = prefixes(value)
			case "pods":
				f.options.DetectLocal = forwarding.DetectLocal{Mode: forwarding.ClusterCIDR, CIDRs: prefixes(value)}
			case "detect":
				mode, name, _ := strings.Cut(value, ":")
				f.options.DetectLocal = forwarding.DetectLocal{Mode: forwarding.LocalMode(mode), Interface: name}
			case "endpointchecks":
				f.options.EndpointChecks = true
			case "external":
				if f.options.ExternalIPs = nil; value != "" {
					f.options.ExternalIPs = prefixes(value)
				}
			case "apiserver":
				f.options.APIServers = []netip.Addr{netip.MustParseAddr(value)}
			case "drain":
				f.options.DrainLimit = duration(value)
			case "reset":
				f.options.ResetAfter = duration(value)
			default:
				panic(key)
			}
		}
	case "unreachable", "reachable":
		for _, name := range words[1:] {
			incremental.Set(f.view.Unreachable, name, f.now, words[0] == "unreachable")
		}
		return true
	case "restart":
	default:
		return false
	}
	clear(f.planners)
	clear(f.stations)
	return true
}

func (f *fixture) command(words []string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("bad command: %v", r)
		}
	}()
	if f.settings(words) || f.bgpCommand(words) || f.stationCommand(words) {
		return nil
	}
	v, name, rest := f.view, words[1], words[2:]
	switch words[0] {
	case "node":
		v.Nodes[name] = parseNode(rest)
	case "host":
		clear(v.Host)
		for _, a := range words[1:] {
			v.Host[netip.MustParseAddr(a)] = struct{}{}
		}
	case "gateways":
		clear(v.Gateways)
		for _, a := range words[1:] {
			if a != "-" {
				v.Gateways[netip.MustParseAddr(a)] = struct{}{}
			}
		}
	case "check":
		at, path, _ := strings.Cut(rest[0], "/")
		addr := netip.MustParseAddrPort(at)
		if name == "endpoint" {
			v.Checks[view.Check{Addr: addr.Addr(), Port: addr.Port()}] = view.CheckResult{Healthy: true}
			break
		}
		result := view.CheckResult{Healthy: rest[1] == "healthy"}
		if len(rest) > 2 {
			result.Weight = uint32(atoi(rest[2]))
		}
		v.Checks[view.Check{Node: name, Addr: addr.Addr(), Port: addr.Port(), Path: "/" + path}] = result
	case "network":
		v.ServiceNetworks[name] = prefixes(rest[0])
	case "other":
		v.OtherProxy[serviceKey(name)] = struct{}{}
	case "service":
		v.Services[serviceKey(name)] = parseService(rest)
	case "slice":
		key := serviceKey(name)
		if v.Slices[key] == nil {
			v.Slices[key] = map[string]view.Slice{}
		}
		v.Slices[key][rest[0]] = parseSlice(rest[1:])
	case "vip":
		vip := view.VIP{}
		for _, w := range rest[2:] {
			if owner, ok := strings.CutPrefix(w, "owner="); ok {
				vip.ReportedOwner = owner
			} else if w == "contested" {
				vip.Contested = true
			} else if generation, ok := strings.CutPrefix(w, "generation="); ok {
				vip.Generation = int64(atoi(generation))
			} else {
				vip.Nodes = append(vip.Nodes, w)
			}
		}
		for _, a := range strings.Split(rest[0], ",") {
			vip.Addresses = append(vip.Addresses, netip.MustParseAddr(a))
		}
		for _, s := range strings.Split(rest[1], ",") {
			vip.Services = append(vip.Services, serviceKey(s))
		}
		v.VIPs[name] = vip
	case "pool":
		v.Pools[name] = parsePool(rest)
	case "advertise":
		v.Advertisements[name] = parseAdvertisement(rest)
	case "delete":
		switch name {
		case "node":
			delete(v.Nodes, rest[0])
		case "other":
			delete(v.OtherProxy, serviceKey(rest[0]))
		case "check":
			at := netip.MustParseAddrPort(rest[0])
			delete(v.Checks, view.Check{Addr: at.Addr(), Port: at.Port()})
		case "service":
			delete(v.Services, serviceKey(rest[0]))
		case "slice":
			delete(v.Slices[serviceKey(rest[0])], rest[1])
		case "vip":
			delete(v.VIPs, rest[0])
		case "pool":
			delete(v.Pools, rest[0])
		case "network":
			delete(v.ServiceNetworks, rest[0])
		case "advertisement":
			delete(v.Advertisements, rest[0])
		default:
			return fmt.Errorf("delete what?")
		}
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

func parsePool(words []string) view.Pool {
	p := view.Pool{Labels: map[string]string{}}
	for _, w := range words {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "range":
			r, err := pools.ParseRange(value)
			if err != nil {
				panic(err)
			}
			p.Ranges = append(p.Ranges, r)
		case "created":
			p.Created = int64(atoi(value))
		default:
			p.Labels[key] = value
		}
	}
	return p
}

func parseNode(words []string) view.Node {
	n := view.Node{Labels: map[string]string{}}
	for _, w := range words {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "nonetwork":
			n.NetworkUnavailable = true
		case "deleted":
			n.BeingDeleted = true
		case "ready":
			n.Ready = true
		case "stopping":
			n.Stopping = true
		case "addr":
			for _, a := range strings.Split(value, ",") {
				n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
			}
			n.Reached = append(n.Reached, n.Addresses...)
		case "reached":
			for _, a := range strings.Split(value, ",") {
				n.Reached = append(n.Reached, netip.MustParseAddr(a))
			}
		case "pods":
			n.PodCIDRs = prefixes(value)
		case "in":
			n.Labels[view.LabelZone] = value
		case "excluded":
			n.Excluded = true
		default:
			n.Labels[key] = value
		}
	}
	return n
}

func parseAddress(w string) view.Address {
	kinds := []struct {
		prefix string
		as     view.Address
	}{{"cluster:", view.Address{Kind: view.ClusterIP}}, {"external:", view.Address{Kind: view.External}}, {"foreign:", view.Address{Kind: view.Foreign}}, {"announce:", view.Address{AnnounceOnly: true}}, {"", view.Address{}}}
	for _, k := range kinds {
		if rest, ok := strings.CutPrefix(w, k.prefix); ok {
			ip, pool, _ := strings.Cut(rest, "@")
			k.as.IP, k.as.Pool = netip.MustParseAddr(ip), pool
			return k.as
		}
	}
	panic(w)
}

func parseService(words []string) view.Service {
	var s view.Service
	for _, a := range strings.Split(words[0], ",") {
		if a != "-" {
			s.Addresses = append(s.Addresses, parseAddress(a))
		}
	}
	for _, w := range words[1:] {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "label":
			if s.Labels == nil {
				s.Labels = map[string]string{}
			}
			label, v, _ := strings.Cut(value, "=")
			s.Labels[label] = v
		case "local":
			s.Local = true
		case "internal-local":
			s.InternalLocal = true
		case "nodeports":
			s.NodePorts = true
		case "health":
			s.HealthCheckNodePort = uint16(atoi(value))
		case "ranges":
			s.Restricted = true
			if value != "" {
				s.Sources = prefixes(value)
			}
		case "scheduler":
			s.Scheduler = value
		case "flags":
			s.Flags = ipvs.Flags(atoi(value))
		case "forwarding":
			s.Forwarding = map[string]view.Forwarding{"nodeport": view.ToNodePort, "direct": view.Direct}[value]
		case "families":
			s.Families = map[string]view.Families{"4": view.OnlyIPv4, "6": view.OnlyIPv6}[value]
		case "affinity":
			s.Affinity = uint32(atoi(value))
		case "created":
			s.Created = int64(atoi(value))
		default:
			s.Ports = append(s.Ports, parsePort(w))
		}
	}
	return s
}

func prefixes(text string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range strings.Split(text, ",") {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d
}

func atoi(s string) int {
	n, err := strconv.ParseInt(s, 0, 32)
	if err != nil {
		panic(err)
	}
	return int(n)
}

func parsePort(w string) view.Port {
	parts := strings.Split(w, "/")
	p := view.Port{Name: parts[0], Protocol: protocols[parts[1]], Port: uint16(atoi(parts[2]))}
	if len(parts) > 3 {
		p.NodePort = uint16(atoi(parts[3]))
	}
	return p
}

var protocols = map[string]ipvs.Protocol{"TCP": ipvs.TCP, "UDP": ipvs.UDP, "SCTP": ipvs.SCTP}

func parseSlice(words []string) view.Slice {
	var s view.Slice
	for _, p := range strings.Split(words[0], ",") {
		if p != "-" {
			s.Ports = append(s.Ports, parsePort(p))
		}
	}
	for _, w := range words[1:] {
		w, hints, _ := strings.Cut(w, "~")
		w, state, _ := strings.Cut(w, "=")
		ip, node, _ := strings.Cut(w, "@")
		e := view.Endpoint{Addr: netip.MustParseAddr(ip), Node: node, Ready: true, Serving: true}
		switch state {
		case "":
		case "notready":
			e.Ready, e.Serving = false, false
		case "terminating":
			e.Ready, e.Terminating = false, true
		case "gone":
			e.Ready, e.Serving, e.Terminating = false, false, true
		default:
			panic(state)
		}
		for _, hint := range strings.Split(hints, "~") {
			switch kind, names, _ := strings.Cut(hint, ":"); kind {
			case "":
			case "nodes":
				e.ForNodes = strings.Split(names, ",")
			case "zones":
				e.ForZones = strings.Split(names, ",")
			default:
				panic(hint)
			}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func parseAdvertisement(words []string) view.Advertisement {
	var a view.Advertisement
	selector := func(text string) pools.Selector {
		label, value, _ := strings.Cut(text, "=")
		return pools.Selector{{Key: label, Operator: pools.In, Values: []string{value}}}
	}
	for _, w := range words {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "pools":
			a.Pools = strings.Split(value, ",")
		case "interfaces":
			a.Interfaces = strings.Split(value, ",")
		case "nodes":
			a.Nodes = append(a.Nodes, selector(value))
		case "poolsel":
			a.PoolSelectors = append(a.PoolSelectors, selector(value))
		case "services":
			a.Services = append(a.Services, selector(value))
		default:
			panic(key)
		}
	}
	return a
}
