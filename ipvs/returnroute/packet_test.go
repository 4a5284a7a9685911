package returnroute_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// lost is how long a request waits for an answer that must not come.
const lost = 400 * time.Millisecond

// ask sends requests over TCP and UDP and wants an answer of a Pod that sees the client's address.
func ask(t *testing.T, from *netspace.Space, client func(family) string, pod string) {
	t.Helper()
	for _, f := range families {
		for _, network := range []string{"tcp", "udp"} {
			got, err := from.Ask(network, at(f.vip, servicePort))
			if want := pod + " " + client(f); err != nil || got != want {
				t.Errorf("%s %s: answer %q, error %v; want %q", f.name, network, got, err, want)
			}
		}
	}
}

func clientOf(f family) string   { return f.client }
func adminOf(f family) string    { return f.admin }
func neighborOf(f family) string { return f.neighbor }

// answers returns how many answers the router has received from each network.
func (l *lab) answers(t *testing.T) map[string]int {
	t.Helper()
	var out []byte
	l.router.Must(t, func() (err error) {
		out, err = exec.Command("nft", "--json", "list", "counters").Output()
		return err
	})
	var listing struct {
		NFTables []struct {
			Counter *struct {
				Name    string
				Packets int
			}
		}
	}
	if err := json.Unmarshal(out, &listing); err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]int)
	for _, o := range listing.NFTables {
		if o.Counter != nil {
			counts[o.Counter.Name] = o.Counter.Packets
		}
	}
	return counts
}

// Without a return route the answers leave by the management network, where the router drops them, whether the owner or
// another node has the Pod.
func TestWithoutReturnRoute(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, node := range l.nodes { // otherwise the owner drops the requests
		node.Sysctl(t, "net.ipv4.conf.all.rp_filter", "2")
	}
	for pod := range uint16(numNodes) {
		l.direct(t, pod)
		for _, f := range families {
			before := l.answers(t)
			conn, err := l.client.DialWithin(lost, "tcp", "", at(f.vip, servicePort))
			if err == nil {
				conn.Close()
				t.Errorf("%s: connected to the Pod of node %d", f.name, pod)
			}
			after := l.answers(t)
			if after["management"] == before["management"] || after["service"] != before["service"] {
				t.Errorf("%s: the answers of node %d come from %v, before %v, want management", f.name, pod, after, before)
			}
		}
	}
}

// With a return route the answers of the owner's Pod and of another node's reach a client beyond the router, although
// the nodes and the router filter by reverse path.
func TestReturnRoute(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.apply(t, wanted())
	for pod := range uint16(numNodes) {
		l.direct(t, pod)
		ask(t, l.client, clientOf, fmt.Sprintf("pod%d", pod))
	}
	if got := l.answers(t); got["management"] != 0 || got["service"] == 0 {
		t.Errorf("the answers come from %v, want service", got)
	}
}

// A connection that exists before the return route uses it, too.
func TestExistingConnection(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.router.Must(t, func() error { return netspace.NFT("delete table inet router") })
	for _, node := range l.nodes {
		node.Sysctl(t, "net.ipv4.conf.all.rp_filter", "2")
	}
	for _, f := range families {
		conn, err := l.client.Dial("tcp", "", at(f.vip, servicePort))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := netspace.AskOn(conn); err != nil {
			t.Fatal(err)
		}
		l.apply(t, wanted())
		l.router.Must(t, func() error { return netspace.NFT(routerRules) })
		if got, err := netspace.AskOn(conn); err != nil || got != "pod0 "+f.client {
			t.Errorf("%s: answer %q, error %v", f.name, got, err)
		}
		l.apply(t, nil)
		l.router.Must(t, func() error { return netspace.NFT("delete table inet router") })
	}
}

// A client on the management network gets its answers through the router, as its requests went; one on the service
// network directly.
func TestClientsOfNodeNetworks(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.apply(t, wanted())
	l.direct(t, 1) // the first tier precedes the reverse path filter of the owner
	ask(t, l.admin, adminOf, "pod1")
	if got := l.answers(t); got["management"] != 0 || got["service"] == 0 {
		t.Errorf("the answers to the management network come from %v, want service", got)
	}
	before := l.answers(t)
	ask(t, l.neighbor, neighborOf, "pod1")
	if after := l.answers(t); after["management"] != before["management"] || after["service"] != before["service"] {
		t.Errorf("the answers on the service network pass the router: %v, before %v", after, before)
	}
}

// Packets of the kernel itself follow the route: refusals and echo replies.
func TestKernelAnswers(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.apply(t, wanted())
	for _, f := range families {
		conn, err := l.client.DialWithin(lost, "tcp", "", at(f.vip, 81))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: connection %v, error %v to a closed port, want a refusal", f.name, conn, err)
		}
		if err := l.client.Ping(f.vip); err != nil {
			t.Errorf("%s: ping: %v", f.name, err)
		}
	}
}

// Answers to a Pod, and of the kernel to a Pod, reach it.
func TestPodAsClient(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.apply(t, wanted())
	client := netspace.New(t)
	netspace.Join(t, client, "eth0", "198.18.0.2/24", l.nodes[0], "pod9", "198.18.0.1/24")
	client.Address(t, "eth0", "2001:db8:99::2/64")
	l.nodes[0].Address(t, "pod9", "2001:db8:99::1/64")
	client.Route(t, ipv4.everywhere, "198.18.0.1")
	client.Route(t, ipv6.everywhere, "2001:db8:99::1")
	ask(t, client, func(f family) string {
		if f.name == ipv6.name {
			return "2001:db8:99::2"
		}
		return "198.18.0.2"
	}, "pod0")
	for _, f := range families {
		if err := client.Ping(f.vip); err != nil {
			t.Errorf("%s: ping: %v", f.name, err)
		}
		if conn, err := client.DialWithin(lost, "tcp", "", at(f.vip, 81)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: connection %v, error %v to a closed port, want a refusal", f.name, conn, err)
		}
	}
}

// The answers of a Pod in the node's network namespace follow the route, though its address is the node's.
func TestHostNetwork(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.apply(t, wanted())
	for _, f := range families {
		l.nodes[0].ServeTCP(t, at(f.management(0), podPort), "host")
		l.nodes[0].ServeUDP(t, at(f.management(0), podPort), "host")
	}
	l.serve(t, 0, func(f family) string { return at(f.management(0), podPort) })
	ask(t, l.client, clientOf, "host")
}

// Packets of other connections, and what leaves the node, have no mark.
func TestMarkIsRemoved(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.apply(t, wanted())
	const count = `table inet test {
	counter marked { }
	counter total { }
	chain leave { type filter hook postrouting priority 200;
		th sport { 80, 8080 } counter name total
		th sport { 80, 8080 } meta mark != 0 counter name marked
	}
}`
	l.nodes[0].Must(t, func() error { return netspace.NFT(count) })
	ask(t, l.client, clientOf, "pod0")
	var out []byte
	l.nodes[0].Must(t, func() (err error) {
		out, err = exec.Command("nft", "list", "counters").CombinedOutput()
		return err
	})
	if text := string(out); strings.Count(text, "packets 0 ") != 1 || !strings.Contains(text, "marked {\n\t\tpackets 0 ") {
		t.Errorf("packets leave with a mark, or none leaves:\n%s", text)
	}
}
