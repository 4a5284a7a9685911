// Command failover measures the effect on clients when a node fails or leaves, in labs on this machine's kernel. It has
// two kinds of rows.
//
// # Rows "address": how the address moves
//
// IronLB with its profiles standard and fast, and keepalived with its default (advert_int 1) and with advert_int 0.1,
// run one after the other in one lab: a LAN with three candidate nodes, a client, and a fourth node with the Pod behind
// the address.
//
// The comparison:
//   - The addresses are the same, one for each of the three nodes at the start. keepalived has a VRRP instance for
//     each, all in state BACKUP with nopreempt and another order of priorities, multicast. All else is as its Debian
//     package has it (VRRP 2 for IPv4 with advert_int 1, else VRRP 3). IronLB has a Service with a VirtualIP for each.
//   - Behind keepalived's address a program on the node itself answers. IronLB's node forwards (nftables) to the Pod,
//     so it does more work for each packet. The Pod is on a separate node without faults: the rows measure the move of
//     the address, not the loss of an endpoint.
//   - The client uses one address, owned by another node in each round. It sends a datagram each 5 ms from one socket,
//     and starts a connection each 5 ms. The outage is the largest gap between two answers or between two connections.
//     A connection that is not established after 900 ms has failed, before TCP retransmits its SYN. The client has the
//     address in its neighbor cache. Another station requests every address each 100 ms, each time from another source
//     address, which identifies the request of an answer. A request answered by two stations counts as a duplicate. A
//     move is a change of the answering station.
//
// The faults:
//
//	power-off         all links of the node cut at once, without a change of carrier, and every process on it killed
//	link-cut          its port detached from the LAN switch; the link to the API server stays
//	kill              SIGKILL to the speaker, or to all processes of keepalived
//	pause             SIGSTOP for 5 s, then SIGCONT
//	stop              SIGTERM
//	drain             the node is cordoned, as kubectl drain does; keepalived's only counterpart is stop
//	power-off-no-api  power-off while the API server is unreachable; IronLB only
//
// After each fault the node is repaired. The round ends when the node could take over again and each address has one
// answering station. Duplicates and moves count until then, so a move back is visible. return-max-ms is the largest gap
// of the client in that time. client-late-ms is the maximum delay of the client itself: an outage up to that size is
// not significant.
//
// # Rows "pods": the effect on traffic
//
// Each peer has its own lab with four nodes, two Pods on each behind every address, and Kubernetes' own timing: a Lease
// is renewed each 10 s, and a node is not Ready after -grace (40 s). Three nodes are candidates. The fourth has no
// faults, and a Pod on it is a client. The peers:
//
//   - standard and fast: IronLB with that profile, nftables and serviceProxy, on all nodes, without kube-proxy.
//   - metallb: MetalLB in L2 mode with its own settings, memberlist included, and kube-proxy (nftables) with its own
//     settings, on all nodes. The L2Advertisement names the announcing interface, because the default list of excluded
//     ones is a file in /etc. MetalLB's webhooks, which only validate objects, are off.
//   - keepalived and keepalived-1s: its virtual_server (IPVS, rr, NAT) with a TCP_CHECK of every Pod, with its default
//     delay_loop (60 s) and with 1 s; VRRP with its defaults. This machine's kernel may lack IPVS, so the three
//     candidates are virtual machines, each paired with a node with its Pods, which fails with it. The clients run
//     outside of them but start a request each 20 ms, not 5: the virtual CPUs may be emulated, which is slow, while all
//     measured times are seconds. There is no ClusterIP.
//
// Each round uses one address, owned by another node each time. New connections, each with a request and its answer,
// and datagrams, each from its own socket, start each 5 ms: from outside to the LoadBalancer address, and from the Pod
// to the ClusterIP and to the LoadBalancer address. A request without an answer within -timeout (1 s) has failed. In
// addition, -established (60) connections from outside send a line each 200 ms, answered or not.
//
// The faults, of the owner (the node that answers for the address) or of another candidate:
//
//	power-off-owner, power-off-other  all links of the node cut at once, every process on it killed
//	link-cut-owner, link-cut-other    both its links cut, as the only cable of a node
//	kubelet                           the kubelet of another node stopped; not with keepalived
//	kill                              SIGKILL to the owner's speaker
//	pause                             SIGSTOP to the owner's speaker for 5 s, then SIGCONT
//	flap                              the LAN's port of another node down for 3 s and up for 3 s, five times
//
// If Kubernetes marks the node not Ready, the clients are observed until 15 s after that, else for 10 s longer than the
// fault, at least 15 s. Then the node is repaired.
//
// A line for each client has the time from the fault until the start of the last failed request (p50, p99, max; 0: none
// failed), the share of failed requests, the number of failures while the node returned (return-failed), and
// client-late-ms. The line "established" is about connections whose Pod was affected by the fault. It has the time from
// the fault until the client read the first reset of such a connection, and the last one (all-max-ms). unreset is the
// number of those never reset. broken is the number of broken connections to other Pods: in a round with a fault of the
// owner they move with the address. lost-pods counts unaffected Pods without new connections, until Kubernetes marks
// their node not Ready.
//
// Results are in Go's benchmark format on standard output, with a line for each round on standard error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	rows                    string
	peers, faults, families []string
	rounds, addresses       int
	logs                    string

	// Of the rows "pods".
	grace, timeout time.Duration
	established    int
}

// The kinds of rows.
const (
	rowsAddress = "address"
	rowsPods    = "pods"
)

func main() {
	var o options
	var peers, faults, families string
	flag.StringVar(&o.rows, "rows", rowsAddress, "which rows: address or pods")
	flag.StringVar(&peers, "peers", "", "who is measured, in this order; empty: all of the rows")
	flag.StringVar(&faults, "faults", "", "what happens; empty: all faults of the rows")
	flag.StringVar(&families, "family", "ipv4", "ipv4, ipv6, or both")
	flag.IntVar(&o.rounds, "rounds", 20, "rounds of each fault")
	flag.IntVar(&o.addresses, "addresses", 3, "addresses that are held, 1 to 13")
	flag.StringVar(&o.logs, "logs", "", "a folder to save the lab's logs in; rows pods: with all that the clients saw")
	flag.DurationVar(&o.grace, "grace", 40*time.Second, "rows pods: silence until a node is not Ready for Kubernetes")
	flag.DurationVar(&o.timeout, "timeout", time.Second, "rows pods: a request without an answer has failed then")
	flag.IntVar(&o.established, "established", 60, "rows pods: connections that stay")
	flag.Parse()
	o.peers, o.faults = list(peers, o.knownPeers()), list(faults, o.knownFaults())
	o.families = strings.Split(families, ",")
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	measure := run
	if o.rows == rowsPods {
		measure = runPods
	}
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// list splits the value of a flag.
func list(value string, all []string) []string {
	if value == "" {
		return all
	}
	return strings.Split(value, ",")
}

func (o options) knownPeers() []string {
	if o.rows == rowsPods {
		return podPeerNames()
	}
	return peerNames()
}

func (o options) knownFaults() []string {
	if o.rows == rowsPods {
		return podFaultNames()
	}
	return faultNames()
}

// ours reports whether IronLB is among the peers.
func (o options) ours() bool {
	return slices.ContainsFunc(o.peers, func(p string) bool { return !strings.HasPrefix(p, keepalivedName) })
}

func (o options) check() error {
	if o.rows != rowsAddress && o.rows != rowsPods {
		return fmt.Errorf("-rows: %q is neither %s nor %s", o.rows, rowsAddress, rowsPods)
	}
	for _, c := range []struct {
		flag        string
		have, known []string
	}{
		{"-peers", o.peers, o.knownPeers()},
		{"-faults", o.faults, o.knownFaults()},
		{"-family", o.families, []string{"ipv4", "ipv6"}},
	} {
		for _, name := range c.have {
			if !slices.Contains(c.known, name) {
				return fmt.Errorf("%s: %q is none of %s", c.flag, name, strings.Join(c.known, ", "))
			}
		}
	}
	if o.rounds < 1 || o.addresses < 1 || o.addresses > 13 {
		return errors.New("-rounds is from 1, -addresses from 1 to 13")
	}
	if o.grace < 2*heartbeat || o.timeout <= 0 || o.established < 1 {
		return fmt.Errorf("-grace is from %s, -timeout above 0, -established from 1", 2*heartbeat)
	}
	return nil
}
