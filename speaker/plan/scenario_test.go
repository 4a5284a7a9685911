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
	"github.com/ironlb/ironlb/pools"
)

var update = flag.Bool("update", false, "rewrite the expected plans in testdata")

// TestScenarios runs testdata/*.txt. A file is a sequence of commands; those named below change the View, and
//
//	plan NODE
//
// is followed by the expected plan of that node, indented by a tab. The View stays from one plan to the next.
//
//	node NAME [notready] [LABEL=VALUE...]
//	service NS/NAME IP[@POOL],... [PORTNAME/PROTO/PORT...] [local] [affinity=SECONDS] [created=N]
//	slice NS/NAME SLICE PORTNAME/PROTO/PORT,... [IP[@NODE][=notready|=terminating|=gone]...]
//	vip NAME IP,... NS/NAME,... [NODE...] [holder=NODE]
//	advertise NAME [pools=A,B] [interfaces=A,B] [nodes=LABEL=VALUE]...
//	delete KIND NAME [SLICE]
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
	v := NewView()
	var out strings.Builder
	for lines := bufio.NewScanner(strings.NewReader(string(before))); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "\t") {
			continue // an expected plan: written anew
		}
		out.WriteString(line + "\n")
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(line, "#"):
		case words[0] == "plan":
			for _, l := range strings.Split(strings.TrimRight(text(Make(v, Options{Node: words[1]}, time.Time{})), "\n"), "\n") {
				out.WriteString("\t" + l + "\n")
			}
		default:
			if err := command(v, words); err != nil {
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

func command(v *View, words []string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("bad command: %v", r)
		}
	}()
	name, rest := words[1], words[2:]
	switch words[0] {
	case "node":
		v.Nodes[name] = parseNode(rest)
	case "service":
		v.Services[serviceKey(name)] = parseService(rest)
	case "slice":
		key := serviceKey(name)
		if v.Slices[key] == nil {
			v.Slices[key] = map[string]Slice{}
		}
		v.Slices[key][rest[0]] = parseSlice(rest[1:])
	case "vip":
		vip := VIP{}
		for _, w := range rest[2:] {
			if holder, ok := strings.CutPrefix(w, "holder="); ok {
				vip.Holder = holder
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
	case "advertise":
		v.Advertisements[name] = parseAdvertisement(rest)
	case "delete":
		switch name {
		case "node":
			delete(v.Nodes, rest[0])
		case "service":
			delete(v.Services, serviceKey(rest[0]))
		case "slice":
			delete(v.Slices[serviceKey(rest[0])], rest[1])
		case "vip":
			delete(v.VIPs, rest[0])
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

func parseNode(words []string) Node {
	n := Node{Ready: true, Labels: map[string]string{}}
	for _, w := range words {
		if w == "notready" {
			n.Ready = false
			continue
		}
		key, value, _ := strings.Cut(w, "=")
		n.Labels[key] = value
	}
	return n
}

func parseService(words []string) Service {
	var s Service
	for _, a := range strings.Split(words[0], ",") {
		ip, pool, _ := strings.Cut(a, "@")
		s.Addresses = append(s.Addresses, Address{IP: netip.MustParseAddr(ip), Pool: pool})
	}
	for _, w := range words[1:] {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "local":
			s.Local = true
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

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

func parsePort(w string) Port {
	parts := strings.Split(w, "/")
	protocol := map[string]ipvs.Protocol{"TCP": ipvs.TCP, "UDP": ipvs.UDP, "SCTP": ipvs.SCTP}[parts[1]]
	return Port{Name: parts[0], Protocol: protocol, Port: uint16(atoi(parts[2]))}
}

func parseSlice(words []string) Slice {
	var s Slice
	for _, p := range strings.Split(words[0], ",") {
		s.Ports = append(s.Ports, parsePort(p))
	}
	for _, w := range words[1:] {
		w, state, _ := strings.Cut(w, "=")
		ip, node, _ := strings.Cut(w, "@")
		e := Endpoint{Addr: netip.MustParseAddr(ip), Node: node, Ready: true, Serving: true}
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
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func parseAdvertisement(words []string) Advertisement {
	var a Advertisement
	for _, w := range words {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "pools":
			a.Pools = strings.Split(value, ",")
		case "interfaces":
			a.Interfaces = strings.Split(value, ",")
		case "nodes":
			label, v, _ := strings.Cut(value, "=")
			a.Nodes = append(a.Nodes, pools.Selector{{Key: label, Operator: pools.In, Values: []string{v}}})
		default:
			panic(key)
		}
	}
	return a
}
