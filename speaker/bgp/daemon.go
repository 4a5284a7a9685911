package bgp

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironlb/ironlb/speaker/plan"
)

// BFD runs the BFD sessions.
type BFD interface {
	// Set says which there are, the whole set each time: each peer's Address, Source, MultiHop and BFD.
	Set(peers map[string]plan.Peer)
	// Run returns when ctx ends, and does not tell the other sides (announce.md, BGP 5).
	Run(ctx context.Context) error
}

// BFDStatus is how a BFD session is.
type BFDStatus struct {
	State plan.BFDState
	Since time.Time
	// Dead is set if the session is down because the path was found dead. It is not where the other side ends the session on purpose
	// (RFC 5882, 3.2), or where the session was made anew.
	Dead bool
	// Why it is down, in words.
	Why string
}

// DaemonOptions are what a Daemon needs.
type DaemonOptions struct {
	Log *slog.Logger
	// Socket on which the speaker is awaited.
	Socket string
	// Hold is how long the routes stay without a speaker, 0 for ever.
	Hold time.Duration
	// Child returns the command of the process with GoBGP, which is to call Serve with its file 3. Its standard error goes to that
	// of this process.
	Child func() *exec.Cmd
	// BFD of the peers; what it finds goes to BFDChanged.
	BFD     BFD
	Metrics *Metrics
}

// leaveLimit is how long the polite end may take; the child takes three seconds.
const leaveLimit = 8 * time.Second

// Between the steps of depart, as of the child's polite end: RFC 8326 leaves the first to the operator; routers take a second to use another path.
const (
	drainTime    = 2 * time.Second
	withdrawTime = time.Second
)

// starts is why there is no child before the first one.
const starts = "it starts"

// Daemon is ironlb-bgpd: it keeps what is wanted when the speaker ends and when GoBGP does, and has BFD run beside them.
type Daemon struct {
	o      DaemonOptions
	server *Server
	// first is closed with the first peer that is wanted: before there is nothing for a child to do.
	first chan struct{}

	mu      sync.Mutex
	begun   bool // first is closed
	wanted  plan.BGP
	speaker bool
	hold    *time.Timer // runs while there is no speaker

	child *link              // nil while it does not run
	kill  context.CancelFunc // ends it
	heard bool               // it has reported, so GoBGP has what is wanted
	again bool               // start it again at once when it has ended
	since time.Time          // since when it runs or does not
	ended string             // why it does not
	gone  chan struct{}      // closed when it has ended
	bye   bool               // it is asked to leave

	goBGP    map[string]plan.Session // as the child says
	changes  map[string]uint64       // Changes of the children before
	bfd      map[string]BFDStatus
	reported map[string]plan.Session
	applied  uint64 // by the child, and not reported yet
}

// NewDaemon returns a daemon that starts with Run.
func NewDaemon(o DaemonOptions) *Daemon {
	d := &Daemon{
		o: o, first: make(chan struct{}), since: now(), ended: starts,
		goBGP: map[string]plan.Session{}, changes: map[string]uint64{}, reported: map[string]plan.Session{},
	}
	d.server = NewServer(ServerOptions{
		Socket: o.Socket, Log: o.Log, Change: d.change, Connected: d.connected, Health: d.health,
	})
	return d
}

// Run works until ctx ends, and then leaves: peers with graceful restart are told nothing, so that they keep the routes until the next
// process is there; the others are told to look elsewhere. If the node goes all are: nobody comes back for a while.
func (d *Daemon) Run(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, life := errgroup.WithContext(life)
	serving, stopServing := context.WithCancel(life)
	defer stopServing()
	group.Go(func() error { return d.server.Run(serving) })
	group.Go(func() error { return d.o.BFD.Run(life) })
	group.Go(func() error { return d.keepChild(life) })
	group.Go(func() error {
		defer end()
		select {
		case <-life.Done():
		case <-ctx.Done():
			stopServing() // nothing new from here on
			d.leave(life)
		}
		return nil
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// leave has the child say goodbye to those who do not wait for the next process.
func (d *Daemon) leave(ctx context.Context) {
	d.mu.Lock()
	child, gone, told := d.child, d.gone, 0
	wanted := d.wanted // which nobody changes any more
	for _, p := range wanted.Peers {
		if !p.GracefulRestart || wanted.NodeGoes {
			told++
		}
	}
	peers := len(wanted.Peers)
	d.bye = true
	d.mu.Unlock()
	d.o.Log.Info("leave", "peers that keep the routes", peers-told, "peers that are told", told, "node goes", wanted.NodeGoes)
	switch {
	case child == nil || told == 0:
		return
	case wanted.NodeGoes:
		depart(ctx, wanted, child, gone)
		return
	}
	child.sendUrgent(Message{Leave: &Leave{}})
	select {
	case <-gone:
	case <-ctx.Done():
	case <-time.After(leaveLimit):
		d.o.Log.Warn("GoBGP did not leave in time", "limit", leaveLimit)
	}
}

// depart has every peer look elsewhere, and then takes all routes back.
func depart(ctx context.Context, wanted plan.BGP, child *link, gone <-chan struct{}) {
	if len(wanted.Routes) == 0 {
		return
	}
	for _, step := range []struct {
		change plan.BGPChange
		pause  time.Duration
	}{{drained(wanted), drainTime}, {withdrawn(wanted), withdrawTime}} {
		child.sendChange(step.change)
		select {
		case <-gone:
			return
		case <-ctx.Done():
			return
		case <-time.After(step.pause):
		}
	}
}

// change takes what the speaker wants; the server hands over one at a time.
func (d *Daemon) change(c plan.BGPChange) {
	d.mu.Lock()
	if d.bye {
		d.mu.Unlock()
		return
	}
	before := d.wanted
	d.wanted.Apply(c)
	for name := range d.changes {
		if _, still := d.wanted.Peers[name]; !still {
			delete(d.changes, name)
		}
	}
	if !d.begun && len(d.wanted.Peers) > 0 {
		d.begun = true
		close(d.first)
	}
	switch {
	case d.child == nil || d.again: // the next one is told all
	case before.RouterID != d.wanted.RouterID: // GoBGP has one for as long as it runs
		d.o.Log.Info("start GoBGP anew", "reason", "the router id changed", "before", before.RouterID, "now", d.wanted.RouterID)
		d.again = true
		d.kill()
	default:
		d.child.sendChange(c)
	}
	var watched map[string]plan.Peer
	if c.Whole || len(c.Peers) > 0 {
		watched = map[string]plan.Peer{}
		for name, p := range d.wanted.Peers {
			if p.BFD.On() {
				watched[name] = p
			}
		}
	}
	d.o.Metrics.wanted(len(d.wanted.Peers), len(d.wanted.Routes))
	d.report()
	d.mu.Unlock()
	if watched != nil {
		d.o.BFD.Set(watched)
	}
}

// connected notes whether there is a speaker.
func (d *Daemon) connected(yes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.speaker = yes
	d.o.Metrics.speaker(yes)
	if d.hold != nil {
		d.hold.Stop()
		d.hold = nil
	}
	if !yes && d.o.Hold > 0 {
		d.hold = time.AfterFunc(d.o.Hold, d.withdraw)
	}
}

// withdraw takes all routes back when no speaker has come. Sessions stay, and the next speaker begins with all it wants.
func (d *Daemon) withdraw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.speaker || len(d.wanted.Routes) == 0 {
		return
	}
	d.o.Log.Warn("withdraw all routes", "reason", "no speaker has connected", "hold", d.o.Hold, "routes", len(d.wanted.Routes))
	c := plan.BGP{RouterID: d.wanted.RouterID, NodeGoes: d.wanted.NodeGoes, Peers: d.wanted.Peers}
	d.wanted.Apply(wholeChange(c))
	d.o.Metrics.wanted(len(d.wanted.Peers), 0)
	if d.child != nil {
		d.child.sendChange(wholeChange(c))
	}
}

// BFDChanged tells how the BFD sessions are, all of them. A session that goes down takes the BGP session with it at once.
func (d *Daemon) BFDChanged(all map[string]BFDStatus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, is := range all {
		was := d.bfd[name]
		if was.State != plan.BFDUp || is.State == plan.BFDUp {
			continue
		}
		if !is.Dead {
			d.o.Log.Info("BFD is down, and the BGP session stays", "peer", name, "reason", is.Why)
			continue
		}
		d.o.Metrics.bfdDown()
		d.o.Log.Warn("take the BGP session down", "peer", name, "reason", plan.BFDWentDown, "why", is.Why)
		if d.child != nil {
			d.child.sendUrgent(Message{Down: &Down{Peer: name, Why: is.Why}})
		}
	}
	d.bfd = all
	d.report()
}

// childReport takes what the child says.
func (d *Daemon) childReport(r plan.BGPReport) {
	d.mu.Lock()
	defer d.mu.Unlock()
	applyReport(d.goBGP, r)
	d.heard, d.applied = true, r.Applied
	d.report()
}

// report tells the speaker what is new of the sessions. d.mu is held.
func (d *Daemon) report() {
	r := plan.BGPReport{Sessions: map[string]*plan.Session{}, Applied: d.applied}
	d.applied = 0
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

// session puts together what is known of a peer's. d.mu is held.
func (d *Daemon) session(name string) plan.Session {
	s, reported := d.goBGP[name]
	if !reported {
		s = plan.Session{State: plan.SessionIdle, Since: d.since}
	}
	if d.child == nil {
		s.Reason, s.Message = plan.NoBGPProcess, "GoBGP does not run: "+d.ended
	}
	s.Changes += d.changes[name]
	s.Since = s.Since.Round(0).UTC()
	if d.wanted.Peers[name].BFD.On() {
		s.BFD, s.BFDSince = plan.BFDDown, d.since
		if is, ok := d.bfd[name]; ok {
			s.BFD, s.BFDSince = is.State, is.Since.Round(0).UTC()
		}
	}
	return s
}

// health answers a probe: whoever asks waits as long as the daemon is stuck.
func (d *Daemon) health(context.Context) (Health, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case len(d.wanted.Peers) == 0:
	case d.child == nil:
		return Health{Problem: "GoBGP does not run: " + d.ended}, nil
	case !d.heard && d.wanted.RouterID.IsValid(): // without one GoBGP has nothing to do
		problem := "GoBGP runs, and has not yet taken what is wanted"
		if d.ended != starts {
			problem += "; the one before ended: " + d.ended
		}
		return Health{Problem: problem}, nil
	}
	return Health{}, nil
}

func now() time.Time { return time.Now().Round(0).UTC() }
