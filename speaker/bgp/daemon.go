package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// BFD runs the BFD sessions.
type BFD interface {
	// Set sets all BFD sessions; the set is complete each time: each peer's Address, Source, MultiHop and BFD.
	Set(peers map[string]plan.Peer)
	// Run returns when ctx ends, and sends nothing to the remote systems (announce.md, BGP 5).
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
}

// leaveLimit is the time limit for Leave; a child takes three seconds.
const leaveLimit = 8 * time.Second

// Daemon is ironlb-bgpd: it keeps the configuration across restarts of the speaker and of GoBGP, and runs BFD
// alongside. Each peer has its own process with GoBGP: input from one peer cannot end the process of another.
type Daemon struct {
	o      DaemonOptions
	server *Server
	group  sync.WaitGroup // of the children's lives

	mu          sync.Mutex
	life        context.Context // the context of the children; nil before Run
	wanted      plan.BGP
	speaker     bool
	hold        *time.Timer // runs while no speaker is connected
	children    map[string]*child
	retiring    map[*child]struct{} // children of removed peers
	terminating bool                // ctx has ended
	bfd         map[string]BFDStatus
	reported    map[string]plan.Session
	applied     uint64 // the serial last reported to the speaker
}

// NewDaemon returns a daemon; Run starts it.
func NewDaemon(o DaemonOptions) *Daemon {
	d := &Daemon{o: o, children: map[string]*child{}, retiring: map[*child]struct{}{}, reported: map[string]plan.Session{}}
	d.server = NewServer(ServerOptions{
		Socket: o.Socket, Log: o.Log, Change: d.change, Connected: d.connected, Health: d.health,
	})
	return d
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
	group.Go(func() error { return d.server.Run(serving) })
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
	for name, c := range d.children {
		switch {
		case c.link == nil || c.restartReason != "":
			c.end()
		case decommissioning || !d.wanted.Peers[name].GracefulRestart:
			notified++
			waiting = append(waiting, c)
			c.link.sendUrgent(Message{Leave: &Leave{All: decommissioning}})
			time.AfterFunc(leaveLimit, c.end)
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
func (d *Daemon) change(c plan.BGPChange) {
	d.mu.Lock()
	if d.terminating {
		d.mu.Unlock()
		return
	}
	d.apply(c)
	var watched map[string]plan.Peer
	if c.Full || len(c.Peers) > 0 {
		watched = map[string]plan.Peer{}
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

// apply sends to each child the part of the change that concerns its peer. d.mu must be held.
func (d *Daemon) apply(c plan.BGPChange) {
	parts := make(map[string]plan.BGPChange, len(d.children))
	if !c.Full {
		for name := range d.children {
			if part := partOfChange(d.wanted, c, name); len(part.Peers) > 0 || len(part.Routes) > 0 {
				parts[name] = part
			}
		}
	}
	held := map[string]plan.Peer{}
	for name, child := range d.children {
		if child.held.reason != "" {
			held[name] = d.wanted.Peers[name]
		}
	}
	d.wanted.Apply(c)
	for name, child := range d.children {
		if _, still := d.wanted.Peers[name]; !still {
			child.retire()
		}
	}
	for name := range d.wanted.Peers {
		child := d.children[name]
		if child == nil {
			d.begin(name)
			continue
		}
		child.address = d.wanted.Peers[name].Address
		if was, is := held[name]; is && was != d.wanted.Peers[name] {
			child.retryNow()
		}
		switch part, has := parts[name]; {
		case child.link == nil || child.restartReason != "": // the next process gets the full configuration
		case child.routerID != d.wanted.RouterIDOf(name): // a GoBGP process never changes its router ID
			child.restart("the router id changed", "before", child.routerID, "now", d.wanted.RouterIDOf(name))
		case c.Full:
			child.send(fullChange(partOf(d.wanted, name)))
		case has:
			child.send(part)
		}
	}
	d.o.Metrics.wanted(len(d.wanted.Peers), len(d.wanted.Routes))
}

// connected records whether a speaker is connected.
func (d *Daemon) connected(yes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.speaker, d.applied = yes, 0
	d.o.Metrics.speaker(yes)
	if d.hold != nil {
		d.hold.Stop()
		d.hold = nil
	}
	if !yes && d.o.Hold > 0 {
		d.hold = time.AfterFunc(d.o.Hold, d.withdraw)
	}
}

// withdraw removes all routes after no speaker has connected for Hold. Sessions stay, and the next speaker starts with
// its full set.
func (d *Daemon) withdraw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.terminating || d.speaker || len(d.wanted.Routes) == 0 {
		return
	}
	d.o.Log.Warn("withdrawing all routes", "reason", "no speaker has connected", "hold", d.o.Hold, "routes", len(d.wanted.Routes))
	d.apply(fullChange(plan.BGP{RouterID: d.wanted.RouterID, NodeDecommissioning: d.wanted.NodeDecommissioning, Peers: d.wanted.Peers}))
}

// BFDChanged records the states of all BFD sessions. A BFD session that goes down takes the BGP session down at once.
func (d *Daemon) BFDChanged(all map[string]BFDStatus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, is := range all {
		was, c := d.bfd[name].State == view.BFDUp, d.children[name]
		if !was && is.State == view.BFDUp && c != nil && c.link != nil {
			c.link.sendUrgent(Message{Up: &Up{Peer: name}})
		}
		if !was || is.State == view.BFDUp {
			continue
		}
		if !is.Dead {
			d.o.Log.Info("BFD session down, BGP session kept", "peer", name, "reason", is.Why)
			continue
		}
		if c == nil || c.link == nil {
			continue
		}
		if c.session != nil && c.session.State == plan.SessionEstablished { // else there is nothing to report
			d.o.Metrics.bfdDown()
			d.o.Log.Warn("BFD session down, ending the BGP session", "peer", name, "reason", plan.BFDWentDown, "why", is.Why)
		}
		c.link.sendUrgent(Message{Down: &Down{Peer: name, Why: is.Why}})
	}
	d.bfd = all
	d.report()
}

// report sends the changed session states to the speaker. d.mu must be held.
func (d *Daemon) report() {
	r := plan.BGPReport{Sessions: map[string]*plan.Session{}}
	if applied := d.lastApplied(); applied != d.applied {
		d.applied, r.Applied = applied, applied
	}
	states := map[plan.SessionState]int{}
	for name := range d.wanted.Peers {
		s := d.session(name)
		states[s.State]++
		if before, ok := d.reported[name]; !ok || before != s {
			d.reported[name], r.Sessions[name] = s, &s
		}
	}
	for name := range d.reported {
		if _, still := d.wanted.Peers[name]; !still {
			delete(d.reported, name)
			r.Sessions[name] = nil
		}
	}
	d.o.Metrics.sessions(states)
	if len(r.Sessions) > 0 || r.Applied != 0 {
		d.server.Report(r)
	}
}

// lastApplied returns the serial of the last change that all children have applied, with those before it; a crashed
// child is not waited for. d.mu must be held.
func (d *Daemon) lastApplied() uint64 {
	serial := d.wanted.Serial
	for _, c := range d.children {
		if !c.crashed() && c.firstUnapplied != 0 {
			serial = min(serial, c.firstUnapplied-1)
		}
	}
	return serial
}

// session returns the state of a peer's session. d.mu must be held.
func (d *Daemon) session(name string) plan.Session {
	s := d.children[name].status()
	if d.wanted.Peers[name].BFD.On() {
		s.BFD, s.BFDSince = view.BFDDown, d.children[name].began
		if is, ok := d.bfd[name]; ok {
			s.BFD, s.BFDSince, s.BFDMessage = is.State, is.Since.Round(0).UTC(), is.Why
		}
	}
	return s
}

// health answers a probe. A stuck daemon does not answer.
func (d *Daemon) health(context.Context) (Health, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	first, problems := "", 0
	for _, name := range slices.Sorted(maps.Keys(d.children)) {
		c := d.children[name]
		problem := c.problem()
		if problem == "" {
			continue
		}
		problem = fmt.Sprintf("BGPPeer %s: %s", name, problem)
		if c.ended == "" { // it is starting
			return Health{Problem: problem}, nil
		}
		first, problems = cmp.Or(first, problem), problems+1
	}
	if problems < len(d.children) { // one peer that crashes its GoBGP must not delay the others
		return Health{}, nil
	}
	return Health{Problem: first}, nil
}

func now() time.Time { return time.Now().Round(0).UTC() }
