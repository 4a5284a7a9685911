// Command failover measures what a client sees when the node that answers for its address fails or leaves: IronLB with its
// profiles standard and fast beside keepalived with its default (advert_int 1) and with advert_int 0.1, one after the other in one
// lab on this machine's kernel: a LAN with three nodes that may answer, a client, and a fourth node with the Pod behind the address.
//
// What is compared:
//   - The addresses are the same, one for each of the three nodes at the start. keepalived has a VRRP instance for each, all
//     in state BACKUP with nopreempt and another order of priorities, multicast; all else is as its Debian package has it
//     (VRRP 2 for IPv4 with advert_int 1, else VRRP 3). IronLB has a Service with a VirtualIP for each.
//   - Behind keepalived's address a plain program on the node itself answers. Behind IronLB's the node forwards (nftables) to the
//     Pod, so it does more for each packet. The Pod is on a node of its own, which no fault touches: what is measured is how the
//     address moves, not how an endpoint dies.
//   - The client asks one address, which another node holds in each round, with a datagram each 5 ms from one socket, and tries
//     a connection each 5 ms. The outage is the largest gap between two answers or between two connections. A connection has
//     failed that is not there after 900 ms, so before TCP sends its SYN again. The client has the address in its neighbour
//     cache. Another station asks for every address each 100 ms, each time from another address of its own, so that it knows which question
//     an answer is to: a question that two stations answer counts as a duplicate. A move is a change of who answers.
//
// The faults:
//
//	power-off         all links of the node cut at once, without a change of carrier, and every process on it killed
//	link-cut          its port taken off the LAN switch; the link to the API server stays
//	kill              SIGKILL to the speaker, or to all processes of keepalived
//	pause             SIGSTOP for 5 s, then SIGCONT
//	stop              SIGTERM
//	drain             the node is cordoned, as kubectl drain does; keepalived has no counterpart but stop
//	power-off-no-api  power-off while the API server is away; IronLB only
//
// After each fault the node is made whole again, and the round ends when it could take over again and each address has one answerer.
// Duplicates and moves count until then, so a move back shows. return-max-ms is the largest gap of the client in that time,
// and client-late-ms is by how much the client itself was late at most: an outage of that size says nothing.
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
)

type options struct {
	peers, faults, families []string
	rounds, addresses       int
	logs                    string
}

func main() {
	var o options
	var peers, faults, families string
	flag.StringVar(&peers, "peers", "standard,fast,keepalived,keepalived-0.1", "who is measured, in this order")
	flag.StringVar(&faults, "faults", strings.Join(faultNames(), ","), "what happens")
	flag.StringVar(&families, "family", "ipv4", "ipv4, ipv6, or both")
	flag.IntVar(&o.rounds, "rounds", 20, "rounds of each fault")
	flag.IntVar(&o.addresses, "addresses", 3, "addresses that are held, 1 to 13")
	flag.StringVar(&o.logs, "logs", "", "a folder to save the lab's logs in")
	flag.Parse()
	o.peers, o.faults, o.families = strings.Split(peers, ","), strings.Split(faults, ","), strings.Split(families, ",")
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// ours tells whether IronLB is among the peers.
func (o options) ours() bool {
	return slices.ContainsFunc(o.peers, func(p string) bool { return !strings.HasPrefix(p, keepalivedName) })
}

func (o options) check() error {
	for _, c := range []struct {
		flag        string
		have, known []string
	}{
		{"-peers", o.peers, peerNames()},
		{"-faults", o.faults, faultNames()},
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
	return nil
}
