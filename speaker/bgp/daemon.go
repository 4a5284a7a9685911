package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// DefaultSocket is the default path of the socket of ironlb-bgpd.
const DefaultSocket = "/run/ironlb/bgpd/bgpd.sock"

// BFD runs the BFD sessions.
type BFD interface {
	// Set sets all BFD sessions; the set is complete each time: each peer's Address, Source, MultiHop and BFD.
	Set(peers map[string]routes.Peer)
	// Run returns when ctx ends, and sends nothing to the remote systems.
	Run(ctx context.Context) error
}

// BFDStatus is the state of a BFD session.
type BFDStatus struct {
	State view.BFDState
	Since time.Time
	// Dead is set if the session is down because the path was found dead. It is not set if the remote system ended the
	// session deliberately (RFC 5882, 3.2), or if the session was recreated.
	Dead bool
	// Why is the reason why it is down.
	Why string
}

// DaemonOptions configure a Daemon.
type DaemonOptions struct {
	Log *slog.Logger
	// Socket is where it listens for the speaker.
	Socket string
	// Hold is how long the routes stay without a speaker, 0 for ever.
	Hold time.Duration
	// Child returns the command of the process with GoBGP for a peer, which must call ServeFile with ChildFile. Its
	// standard error is forwarded to that of this process.
	Child func(peer string) *exec.Cmd
	// BFD runs the BFD sessions of the peers; their states are passed to BFDChanged.
	BFD     BFD
	Metrics *Metrics
	// Gatherer has the metrics that a speaker requests for a scraper.
	Gatherer prometheus.Gatherer
}

// leaveLimit is the time limit for Leave; a child takes three seconds.
const leaveLimit = 8 * time.Second

// Daemon is ironlb-bgpd: it keeps the configuration across restarts of the speaker and of GoBGP, and runs BFD
// alongside. Each peer has its own process with GoBGP: input from one peer cannot end the process of another.
type Daemon struct {
	o       DaemonOptions
	group   sync.WaitGroup // of the children's lives
	changed chan struct{}  // there is a status for the speaker

	mu          sync.Mutex
	life        context.Context // the context of the children; nil before Run
	wanted      routes.BGP
	speaker     *connection // nil if there is none
	hold        *time.Timer // runs while no speaker is connected
	children    map[string]*child
	retiring    map[*child]struct{} // children of removed peers
	terminating bool                // ctx has ended
	bfd         map[string]BFDStatus
	status      Status
	version     uint64 // of status
}

// NewDaemon returns a daemon; Run starts it.
func NewDaemon(o DaemonOptions) *Daemon {
	return &Daemon{o: o, changed: make(chan struct{}, 1), children: map[string]*child{}, retiring: map[*child]struct{}{}, version: 1}
}

// Run works until ctx ends, and then leaves. Nothing is sent to peers with graceful restart, so that they keep the
// routes until the next process runs; the routes are withdrawn from the others. If the node is being decommissioned,
// they are withdrawn from all peers, because no process will follow for a while.
func (d *Daemon) Run(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, life := errgroup.WithContext(life)
	d.mu.Lock()
	d.life = life
	d.mu.Unlock()
	defer d.group.Wait()
	serving, stopServing := context.WithCancel(life)
	defer stopServing()
	group.Go(func() error { return d.listen(serving) })
	group.Go(func() error { return d.o.BFD.Run(life) })
	group.Go(func() error {
		defer end()
		select {
		case <-life.Done():
		case <-ctx.Done():
			stopServing() // no new input from here on
			d.leave(life)
		}
		return nil
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// leave sends Leave to the children of peers that do not wait for the next process: those without graceful restart, or
// all if the node is being decommissioned. No child starts after that.
func (d *Daemon) leave(ctx context.Context) {
	d.mu.Lock()
	d.terminating = true
	waiting, notified, decommissioning := slices.Collect(maps.Keys(d.retiring)), 0, d.wanted.NodeDecommissioning
	for _, c := range d.children {
		switch {
		case !c.running || c.restartReason != "":
			c.end()
		case decommissioning || !c.want.GracefulRestart:
			notified++
			waiting = append(waiting, c)
			c.leave(Leave{})
		}
	}
	d.o.Log.Info("terminating", "peers", len(d.children), "notifiedPeers", notified, "decommissioning", decommissioning)
	d.mu.Unlock()
	for _, c := range waiting {
		select {
		case <-c.over:
		case <-ctx.Done():
		}
	}
}

// change applies a change from the speaker; the server passes one at a time.
func (d *Daemon) change(c routes.Change) {
	d.mu.Lock()
	if d.terminating {
		d.mu.Unlock()
		return
	}
	d.apply(c)
	var watched map[string]routes.Peer
	if c.Full || len(c.Peers) > 0 {
		watched = map[string]routes.Peer{}
		for name, p := range d.wanted.Peers {
			if p.BFD.On() {
				watched[name] = p
			}
		}
	}
	d.report()
	d.mu.Unlock()
	if watched != nil {
		d.o.BFD.Set(watched)
	}
}

// apply applies a change, and passes on to each child what concerns its peer. d.mu must be held.
func (d *Daemon) apply(c routes.Change) {
	before, serial := make(map[netip.Prefix]routes.Route, len(c.Routes)), d.wanted.Serial
	for prefix := range c.Routes {
		before[prefix] = d.wanted.Routes[prefix]
	}
	if c.Full {
		maps.Copy(before, d.wanted.Routes)
	}
	d.wanted.Apply(c)
	for name, child := range d.children {
		if _, still := d.wanted.Peers[name]; !still {
			child.retire()
		}
	}
	for name, p := range d.wanted.Peers {
		p.RouterID = d.wanted.RouterIDOf(name)
		child := d.children[name]
		if child == nil {
			d.begin(name, p)
			continue
		}
		child.configure(p, serial)
		for prefix, was := range before {
			old, had := was[name]
			if is, has := d.wanted.Routes[prefix][name]; has != had || is != old {
				child.update(prefix, serial)
			}
		}
	}
	d.o.Metrics.wanted(len(d.wanted.Peers), len(d.wanted.Routes))
}

// connected starts or stops the time of Hold. d.mu must be held.
func (d *Daemon) connected() {
	d.o.Metrics.speaker(d.speaker != nil)
	if d.hold != nil {
		d.hold.Stop()
		d.hold = nil
	}
	if d.speaker == nil && d.o.Hold > 0 {
		d.hold = time.AfterFunc(d.o.Hold, d.withdraw)
	}
}

// withdraw removes all routes after no speaker has connected for Hold. Sessions stay, and the next speaker starts with
// its full set.
func (d *Daemon) withdraw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.terminating || d.speaker != nil || len(d.wanted.Routes) == 0 {
		return
	}
	d.o.Log.Warn("withdrawing all routes", "reason", "no speaker has connected", "hold", d.o.Hold, "routes", len(d.wanted.Routes))
	d.apply(*fullChange(routes.BGP{RouterID: d.wanted.RouterID, NodeDecommissioning: d.wanted.NodeDecommissioning, Peers: d.wanted.Peers}))
}

// BFDChanged records the states of all BFD sessions. A BFD session that goes down takes the BGP session down at once.
func (d *Daemon) BFDChanged(all map[string]BFDStatus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, is := range all {
		was, c := d.bfd[name].State == view.BFDUp, d.children[name]
		running := c != nil && c.running
		if !was && is.State == view.BFDUp && running {
			c.urge(order{Up: true})
		}
		if !was || is.State == view.BFDUp {
			continue
		}
		if !is.Dead {
			d.o.Log.Info("BFD session down, BGP session kept", "peer", name, "reason", is.Why)
			continue
		}
		if !running {
			continue
		}
		if c.session != nil && c.session.State == routes.SessionEstablished { // else there is nothing to report
			d.o.Metrics.bfdDown()
			d.o.Log.Warn("BFD session down, ending the BGP session", "peer", name, "reason", routes.BFDWentDown, "why", is.Why)
		}
		c.urge(order{Down: cmp.Or(is.Why, "BFD session down")})
	}
	d.bfd = all
	d.report()
}

// report updates the status, and sends it to the speaker if it has changed. d.mu must be held.
func (d *Daemon) report() {
	now := Status{Sessions: make(map[string]routes.Session, len(d.wanted.Peers)), Applied: d.lastApplied(), Problem: d.problem()}
	states := map[routes.SessionState]int{}
	for name := range d.wanted.Peers {
		now.Sessions[name] = d.session(name)
		states[now.Sessions[name].State]++
	}
	d.o.Metrics.sessions(states)
	if now.Applied != d.status.Applied || now.Problem != d.status.Problem || !maps.Equal(now.Sessions, d.status.Sessions) {
		d.status = now
		d.version++
		trigger(d.changed)
	}
}

// lastApplied returns the serial of the last change that all children have applied, with those before it; a crashed
// child is not waited for. d.mu must be held.
func (d *Daemon) lastApplied() uint64 {
	serial := d.wanted.Serial
	for _, c := range d.children {
		if !c.crashed() && c.behind() {
			serial = min(serial, c.applied)
		}
	}
	return serial
}

// session returns the state of a peer's session. d.mu must be held.
func (d *Daemon) session(name string) routes.Session {
	s := d.children[name].status()
	if d.wanted.Peers[name].BFD.On() {
		s.BFD, s.BFDSince = view.BFDDown, d.children[name].began
		if is, ok := d.bfd[name]; ok {
			s.BFD, s.BFDSince, s.BFDMessage = is.State, is.Since.Round(0).UTC(), is.Why
		}
	}
	return s
}

// problem returns why it cannot run BGP although peers are configured. d.mu must be held.
func (d *Daemon) problem() string {
	first, problems := "", 0
	for _, name := range slices.Sorted(maps.Keys(d.children)) {
		c := d.children[name]
		problem := c.problem()
		if problem == "" {
			continue
		}
		problem = fmt.Sprintf("BGPPeer %s: %s", name, problem)
		if c.ended == "" { // it is starting
			return problem
		}
		first, problems = cmp.Or(first, problem), problems+1
	}
	if problems < len(d.children) { // one peer that crashes its GoBGP must not delay the others
		return ""
	}
	return first
}

func now() time.Time { return time.Now().Round(0).UTC() }
