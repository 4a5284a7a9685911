package pools

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt with the actual results")

// TestScenarios runs testdata/*.txt: commands, a line of dashes, the results, an empty line. See testdata/README.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := runScenario(string(want))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("%s differs (go test ./pools -update rewrites it):\n%s", file, firstDifference(string(want), got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d\nwant: %s\ngot:  %s", i+1, w[i], g[i])
		}
	}
	return "one is longer"
}

// runScenario runs the commands of a file and returns the file with the actual results.
func runScenario(text string) (string, error) {
	f := newFixture()
	var out, answer strings.Builder
	inAnswer := false
	flush := func() {
		if answer.Len() > 0 {
			fmt.Fprintf(&out, "----\n%s", answer.String())
			answer.Reset()
		}
	}
	for n, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		switch {
		case line == "----":
			inAnswer = true
		case line == "":
			flush()
			inAnswer = false
			out.WriteString("\n")
		case inAnswer:
		case strings.HasPrefix(line, "#"):
			out.WriteString(line + "\n")
		default:
			out.WriteString(line + "\n")
			if err := f.run(strings.Fields(line), &answer); err != nil {
				return "", fmt.Errorf("line %d: %q: %w", n+1, line, err)
			}
		}
	}
	flush()
	return out.String(), nil
}

// fixture is an allocator with the state that a controller would keep and a manual clock.
type fixture struct {
	a      *Allocator
	pools  map[string]Pool
	labels map[string]map[string]string
	others map[Refusal][]netip.Addr
	claims map[ServiceKey]Claim
	status map[ServiceKey][]Address // what the Services record, if the allocator keeps addresses until written
	wiped  map[ServiceKey]bool      // their status is empty at the next restart
	now    time.Time
	born   int
}

func newFixture() *fixture {
	return &fixture{
		a: New(), pools: map[string]Pool{}, labels: map[string]map[string]string{}, others: map[Refusal][]netip.Addr{},
		claims: map[ServiceKey]Claim{}, wiped: map[ServiceKey]bool{}, now: time.Unix(0, 0).UTC(),
	}
}

func (f *fixture) run(words []string, out *strings.Builder) error {
	command, args := words[0], words[1:]
	if len(args) == 0 && !slices.Contains([]string{"restart", "reevaluate", "settle", "parse", "keep"}, command) {
		return fmt.Errorf("too few words")
	}
	switch command {
	case "pool":
		return f.pool(args)
	case "delete-pool":
		delete(f.pools, args[0])
		f.setPools()
	case "namespace":
		labels, err := parseLabels(strings.Join(args[1:], ","))
		if err != nil {
			return err
		}
		f.labels[args[0]] = labels
		f.a.SetNamespace(args[0], labels)
	case "delete-namespace":
		delete(f.labels, args[0])
		f.a.DeleteNamespace(args[0])
	case "node", "foreign", "gateway":
		var addrs []netip.Addr
		for _, text := range args[1:] {
			addrs = append(addrs, netip.MustParseAddr(text))
		}
		f.withhold(command, args[0], addrs)
	case "hosts":
		hosts := map[netip.Addr]string{}
		for _, text := range args {
			if addr, host, found := strings.Cut(text, "="); found {
				hosts[netip.MustParseAddr(addr)] = host
			}
		}
		f.a.SetHosts(hosts)
	case "delete-node":
		f.withhold("node", args[0], nil)
	case "assign":
		c, err := f.claim(args)
		if err != nil {
			return err
		}
		f.assign(c, out)
	case "reassign":
		f.assign(f.claims[key(args[0])], out)
	case "release":
		delete(f.claims, key(args[0]))
		delete(f.status, key(args[0]))
		fmt.Fprintf(out, "%s freed %v\n", args[0], f.a.Release(key(args[0]), f.now))
	case "wipe":
		f.wiped[key(args[0])] = true
	case "keep":
		f.status = map[ServiceKey][]Address{}
	case "written":
		fmt.Fprintf(out, "%s freed %v\n", args[0], f.a.Written(key(args[0]), f.now))
		f.status[key(args[0])] = f.a.Lease(key(args[0]))
	case "restart":
		f.restart(args, out)
	case "reevaluate":
		fmt.Fprintf(out, "other decision for %s\n", names(f.a.Reevaluate(f.now)))
	case "settle":
		f.settle(out)
	case "time":
		d, err := time.ParseDuration(strings.TrimPrefix(args[0], "+"))
		if err != nil {
			return err
		}
		f.now = f.now.Add(d)
	case "status":
		f.poolStatus(args[0], out)
	case "holders":
		fmt.Fprintf(out, "%s is held by %s\n", args[0], names(f.a.Holders(netip.MustParseAddr(args[0]))))
	case "parse":
		r, err := ParseRanges(strings.Split(strings.Join(args, " "), ";"))
		if err != nil {
			fmt.Fprintf(out, "error: %v\n", err)
		} else {
			fmt.Fprintf(out, "%v\n", r)
		}
	default:
		return fmt.Errorf("no such command")
	}
	return nil
}

// withhold gives addresses to a node, a gateway of a node, or a Service of another controller.
func (f *fixture) withhold(kind, name string, addrs []netip.Addr) {
	r := map[string]Refusal{"node": {RuleNode, name}, "gateway": {RuleGateway, name}, "foreign": {RuleService, key(name).String()}}[kind]
	f.others[r] = addrs
	f.a.Withhold(r, addrs, f.now)
}

func (f *fixture) assign(c Claim, out *strings.Builder) {
	f.claims[c.Service] = c
	d := f.a.Assign(c, f.now)
	if f.status == nil {
		d.Freed = f.a.Written(c.Service, f.now)
	}
	writeDecision(c.Service, d, out)
}

func writeDecision(k ServiceKey, d Decision, out *strings.Builder) {
	fmt.Fprintf(out, "%s %s", short(k), leaseText(d.Lease))
	if d.Changed {
		out.WriteString(", changed")
	}
	if d.Reallocated {
		out.WriteString(", reallocated")
	}
	if len(d.Freed) > 0 {
		fmt.Fprintf(out, ", freed %v", d.Freed)
	}
	if d.Reason != Allocated {
		fmt.Fprintf(out, "; %s: %s", d.Reason, d.Message)
	}
	out.WriteString("\n")
}

func leaseText(lease []Address) string {
	if len(lease) == 0 {
		return "has nothing"
	}
	var parts []string
	for _, l := range lease {
		parts = append(parts, fmt.Sprintf("%s (%s)", l.Addr, l.Pool))
	}
	return "has " + strings.Join(parts, " ")
}

// settle assigns the Services that Reevaluate returns until it returns none.
func (f *fixture) settle(out *strings.Builder) {
	for {
		keys := f.a.Reevaluate(f.now)
		if len(keys) == 0 {
			return
		}
		for _, k := range keys {
			f.assign(f.claims[k], out)
		}
	}
}

// restart starts over with the state of the API server: pools, namespaces, claims and recorded status. With "late", the
// pools arrive after the Services.
func (f *fixture) restart(args []string, out *strings.Builder) {
	old := f.a
	f.a = New()
	var held []Claim
	for k, c := range f.claims {
		if f.wiped[k] {
			c.Lost = old.Lease(k)
		} else if l := old.Lease(k); len(l) > 0 && f.status == nil {
			c.Held = l
		} else if f.status != nil {
			c.Held = f.status[k]
		}
		held = append(held, c)
	}
	for ns, labels := range f.labels {
		f.a.SetNamespace(ns, labels)
	}
	setNodes := func() {
		for by, addrs := range f.others {
			f.a.Withhold(by, addrs, f.now)
		}
	}
	if !slices.Contains(args, "late") {
		setNodes()
		f.setPools()
	}
	clear(f.wiped)
	var cooling []CoolDown
	for name := range f.pools {
		st, _ := old.PoolStatus(name)
		cooling = append(cooling, st.CoolDowns...)
	}
	if !slices.Contains(args, "late") {
		f.a.Restore(cooling, f.now)
	}
	if refused := f.a.Adopt(held); len(refused) > 0 {
		fmt.Fprintf(out, "must move %s\n", names(refused))
	}
	setNodes()
	f.setPools()
	f.a.Restore(cooling, f.now)
}

func (f *fixture) poolStatus(name string, out *strings.Builder) {
	st, ok := f.a.PoolStatus(name)
	if !ok {
		fmt.Fprintf(out, "%s: no such pool\n", name)
		return
	}
	fmt.Fprintf(out, "%s: %s", name, st.State)
	if st.Overlaps != "" {
		fmt.Fprintf(out, " %s", st.Overlaps)
	}
	fmt.Fprintf(out, "; IPv4 assigned %d available %d; IPv6 assigned %d available %d", st.AssignedIPv4, st.AvailableIPv4, st.AssignedIPv6, st.AvailableIPv6)
	if len(st.Exhausted) > 0 {
		fmt.Fprintf(out, "; exhausted %v", st.Exhausted)
	}
	if len(st.Draining) > 0 {
		fmt.Fprintf(out, "; draining %s", names(st.Draining))
	}
	for _, c := range st.CoolDowns {
		fmt.Fprintf(out, "; %s cools down since %s, by %s", c.Addr, f.now.Sub(c.Freed), short(c.By))
	}
	for _, n := range st.Withheld {
		fmt.Fprintf(out, "; %s", n.Addr)
		for _, by := range n.By {
			fmt.Fprintf(out, " %s", by)
		}
		if len(n.Holders) > 0 {
			fmt.Fprintf(out, " and held by %s", names(n.Holders))
		}
	}
	out.WriteString("\n")
}

func names(keys []ServiceKey) string {
	if len(keys) == 0 {
		return "none"
	}
	var out []string
	for _, k := range keys {
		out = append(out, short(k))
	}
	return strings.Join(out, " ")
}

// key parses namespace/name. A name alone is in namespace default.
func key(s string) ServiceKey {
	if ns, name, ok := strings.Cut(s, "/"); ok {
		return ServiceKey{ns, name}
	}
	return ServiceKey{"default", s}
}

func short(k ServiceKey) string { return strings.TrimPrefix(k.String(), "default/") }

func (f *fixture) setPools() {
	var all []Pool
	for _, p := range f.pools {
		all = append(all, p)
	}
	f.a.SetPools(all)
}

func (f *fixture) pool(args []string) error {
	p := Pool{Name: args[0], AutoAssign: true}
	if old, ok := f.pools[p.Name]; ok {
		p.Created = old.Created
	} else {
		f.born++
		p.Created = time.Unix(int64(f.born), 0)
	}
	var entries []string
	for _, arg := range args[1:] {
		name, v, ok := strings.Cut(arg, "=")
		if !ok {
			entries = append(entries, arg)
			continue
		}
		if err := poolOption(&p, name, v); err != nil {
			return err
		}
	}
	for _, e := range entries {
		r, err := ParseRange(e)
		if err != nil {
			return err
		}
		p.Ranges = append(p.Ranges, r)
	}
	f.pools[p.Name] = p
	f.setPools()
	return nil
}

func poolOption(p *Pool, name, v string) (err error) {
	switch name {
	case "auto":
		p.AutoAssign = v == "yes"
	case "avoidBuggyIPs":
		p.AvoidBuggyIPs = v == "yes"
	case "created":
		var n int64
		n, err = strconv.ParseInt(v, 10, 64)
		p.Created = time.Unix(n, 0)
	case "priority":
		var n int64
		n, err = strconv.ParseInt(v, 10, 32)
		p.Allocation.Set, p.Allocation.Priority = true, int32(n)
	case "namespaces":
		p.Allocation.Set, p.Allocation.Namespaces = true, strings.Split(v, ",")
	case "namespaceSelector":
		p.Allocation.Set = true
		p.Allocation.NamespaceSelectors = append(p.Allocation.NamespaceSelectors, selector(v))
	case "serviceSelector":
		p.Allocation.Set = true
		p.Allocation.ServiceSelectors = append(p.Allocation.ServiceSelectors, selector(v))
	case "sharing":
		p.SharingNamespaces = strings.Split(v, ",")
	case "reuseAfter":
		p.ReuseAfter, err = time.ParseDuration(v)
	case "unreadable":
		p.Unreadable = v == "yes"
	case "quota":
		p.NamespaceQuota.Set = true
		p.NamespaceQuota.Max, err = strconv.ParseInt(v, 10, 64)
	default:
		err = fmt.Errorf("no pool option %s", name)
	}
	return err
}

// selector parses label:value for In, label for Exists, !label for DoesNotExist, label!value for NotIn, comma for and.
func selector(v string) Selector {
	s := Selector{}
	for _, part := range strings.Split(v, ",") {
		if k, val, ok := strings.Cut(part, ":"); ok {
			s = append(s, Requirement{k, In, []string{val}})
		} else if rest, ok := strings.CutPrefix(part, "!"); ok {
			s = append(s, Requirement{rest, DoesNotExist, nil})
		} else if k, val, ok := strings.Cut(part, "!"); ok {
			s = append(s, Requirement{k, NotIn, []string{val}})
		} else if part != "" {
			s = append(s, Requirement{part, Exists, nil})
		}
	}
	return s
}

func parseLabels(v string) (map[string]string, error) {
	out := map[string]string{}
	for _, part := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' }) {
		k, val, ok := strings.Cut(part, ":")
		if !ok {
			return nil, fmt.Errorf("label %q: write name:value", part)
		}
		out[k] = val
	}
	return out, nil
}

func (f *fixture) claim(args []string) (Claim, error) {
	c := Claim{Service: key(args[0])}
	for _, arg := range args[1:] {
		name, v, _ := strings.Cut(arg, "=")
		if err := claimOption(&c, name, v); err != nil {
			return c, err
		}
	}
	return c, nil
}

func claimOption(c *Claim, name, v string) (err error) {
	switch name {
	case "families":
		c.Families = map[string][]Family{"4": {IPv4}, "6": {IPv6}, "4,6": {IPv4, IPv6}, "6,4": {IPv6, IPv4}}[v]
	case "prefer":
		c.Policy = PreferDualStack
	case "require":
		c.Policy = RequireDualStack
	case "dual":
		c.Families, c.Policy = []Family{IPv4, IPv6}, RequireDualStack
	case "ips":
		for _, s := range strings.Split(v, ",") {
			c.Addresses = append(c.Addresses, netip.MustParseAddr(s))
		}
	case "pool":
		c.Pool = v
	case "key":
		c.SharingKey = v
	case "ports":
		for _, s := range strings.Split(v, ",") {
			proto, num, _ := strings.Cut(s, "/")
			n, err := strconv.ParseUint(num, 10, 16)
			if err != nil {
				return err
			}
			c.Ports = append(c.Ports, Port{strings.ToUpper(proto), uint16(n)})
		}
	case "local":
		c.Local = true
	case "selector":
		c.Selector = v
	case "labels":
		c.Labels, err = parseLabels(v)
	case "invalid":
		c.Invalid = strings.ReplaceAll(v, "_", " ")
	case "reallocate":
		c.Reallocate = true
	case "created":
		var n int64
		n, err = strconv.ParseInt(v, 10, 64)
		c.Created = time.Unix(n, 0)
	case "held":
		c.Held = parseAddresses(v)
	case "lost":
		c.Lost = parseAddresses(v)
	default:
		err = fmt.Errorf("no claim option %s", name)
	}
	return err
}

// parseAddresses parses ADDR@POOL, separated by commas.
func parseAddresses(v string) (out []Address) {
	for _, s := range strings.Split(v, ",") {
		addr, pool, _ := strings.Cut(s, "@")
		out = append(out, Address{netip.MustParseAddr(addr), pool})
	}
	return out
}
