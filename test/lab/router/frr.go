package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

// FRR is a running FRR: zebra, staticd, bgpd and bfdd.
type FRR struct {
	place Place
	procs []*process.Process // zebra first
	conf  Config
}

// common are the arguments of every daemon: the router has its own sockets and files. It runs as the package's user
// frr.
const common = " -P 0 --log stdout --vty_socket " + private + " -z " + private + "/zserv.api -f " + private + "/none.conf -i " + private + "/"

// StartFRR starts the daemons and returns after they are configured.
func StartFRR(ctx context.Context, p Place, c Config) (*FRR, error) {
	zebra, err := p.start(ctx, "zebra", "", "touch "+private+"/none.conf\nchown -R frr:frrvty "+private+"\nexec /usr/lib/frr/zebra"+common+"zebra.pid")
	if err != nil {
		return nil, err
	}
	f := &FRR{place: p, procs: []*process.Process{zebra}}
	if err := f.begin(ctx, c); err != nil {
		return nil, errors.Join(err, f.Stop())
	}
	return f, nil
}

func (f *FRR) begin(ctx context.Context, c Config) error {
	if err := f.ready(ctx, f.procs[0]); err != nil {
		return err
	}
	for name, extra := range map[string]string{"staticd": "", "bgpd": "", "bfdd": " --bfdctl " + private + "/bfdd.sock"} {
		proc, err := process.Start(ctx, f.place.Host, name, filepath.Join(f.place.Logs, name+".log"), host.Cmd{
			Argv: f.place.inside(f.procs[0], "exec /usr/lib/frr/"+name+common+name+".pid"+extra)})
		if err != nil {
			return err
		}
		f.procs = append(f.procs, proc)
	}
	for _, proc := range f.procs[1:] {
		if err := f.ready(ctx, proc); err != nil {
			return err
		}
	}
	return f.Configure(ctx, c)
}

// ready waits for a daemon's command socket.
func (f *FRR) ready(ctx context.Context, proc *process.Process) error {
	return until(ctx, proc, "opens no command socket", func() bool {
		_, err := f.place.do(ctx, f.procs[0], "", "exec test -S "+private+"/"+proc.Name+".vty")
		return err == nil
	})
}

// Configure implements Router. FRR cannot replace its configuration. Therefore commands remove the deleted or changed
// neighbors and prefixes before the new configuration is read.
func (f *FRR) Configure(ctx context.Context, c Config) error {
	var l lines
	if f.conf.ASN != 0 && f.conf.ASN != c.ASN {
		l.add("no router bgp %d", f.conf.ASN)
	} else if f.conf.ASN != 0 {
		l.add("router bgp %d", c.ASN)
		for _, n := range f.conf.Neighbors {
			l.addIf(!slices.Contains(c.Neighbors, n), " no neighbor %v", n.Address.WithZone(""))
		}
		var gone []netip.Prefix
		for _, p := range f.conf.Announce {
			if !slices.Contains(c.Announce, p) {
				gone = append(gone, p)
				l.add(" address-family %s unicast\n  no network %v\n exit-address-family", familyOf(p), p)
			}
		}
		l.add("exit")
		for _, p := range gone {
			l.add("no %s route %v blackhole", map[string]string{"ipv4": "ip", "ipv6": "ipv6"}[familyOf(p)], p)
		}
	}
	l.WriteString(c.frr())
	out, err := f.place.do(ctx, f.procs[0], l.String(), "cat >"+private+"/frr.conf\nexec vtysh --vty_socket "+private+" --config_dir "+private+" -f "+private+"/frr.conf")
	if err == nil && (strings.Contains(out, "%") || strings.Contains(out, "nknown command")) {
		err = fmt.Errorf("configure FRR: %s", out)
	}
	if err == nil {
		f.conf = c
	}
	return err
}

func familyOf(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "ipv4"
	}
	return "ipv6"
}

// Ask implements Router.
func (f *FRR) Ask(ctx context.Context, command string) (string, error) {
	return f.place.do(ctx, f.procs[0], command, "exec vtysh --vty_socket "+private+" --config_dir "+private+" -c \"$(cat)\"")
}

// Routes implements Router.
func (f *FRR) Routes(ctx context.Context, family int) ([]Route, error) {
	return f.place.Routes(ctx, family, "bgp")
}

// Log implements Router.
func (f *FRR) Log() string {
	var out strings.Builder
	for _, p := range f.procs {
		fmt.Fprintf(&out, "%s:\n%s\n", p.Name, process.Tail(p.Log, 100))
	}
	return out.String()
}

// Stop implements Router.
func (f *FRR) Stop() error {
	var errs []error
	for _, p := range slices.Backward(f.procs) {
		errs = append(errs, p.Kill())
	}
	return errors.Join(errs...)
}

func (f *FRR) ask(ctx context.Context, command string, into any) (string, error) {
	out, err := f.Ask(ctx, command)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return "", fmt.Errorf("vtysh %s: %w: %s", command, err, out)
	}
	return out, nil
}

// Sessions implements Router.
func (f *FRR) Sessions(ctx context.Context) (map[string]Session, error) {
	neighbors := map[string]json.RawMessage{}
	if _, err := f.ask(ctx, "show bgp neighbors json", &neighbors); err != nil {
		return nil, err
	}
	sessions := map[string]Session{}
	for addr, text := range neighbors {
		var n struct {
			NbrDesc                    string
			RemoteAs                   uint32
			RemoteRouterID             netip.Addr `json:"remoteRouterId"`
			BgpState                   string
			BgpTimerUpEstablishedEpoch int64
			BgpTimerHoldTimeMsecs      int64
			ConnectionsEstablished     int
			MessageStats               struct{ UpdatesRecv int }
			GracefulRestartInfo        struct {
				Timers struct{ ReceivedRestartTimer int }
			}
		}
		if err := json.Unmarshal(text, &n); err != nil {
			return nil, fmt.Errorf("show bgp neighbors: %s: %w", addr, err)
		}
		s := Session{State: n.BgpState, Count: n.ConnectionsEstablished, Updates: n.MessageStats.UpdatesRecv, Established: n.BgpState == "Established", ASN: n.RemoteAs, ID: n.RemoteRouterID,
			Since: time.Unix(n.BgpTimerUpEstablishedEpoch, 0), Hold: time.Duration(n.BgpTimerHoldTimeMsecs) * time.Millisecond,
			RestartTime: time.Duration(n.GracefulRestartInfo.Timers.ReceivedRestartTimer) * time.Second, Text: string(text)}
		s.Address, _ = netip.ParseAddr(addr)
		sessions[n.NbrDesc] = s
	}
	return sessions, nil
}

// RIB implements Router.
func (f *FRR) RIB(ctx context.Context, prefix string) ([]Path, error) {
	family := "ipv4"
	if strings.Contains(prefix, ":") {
		family = "ipv6"
	}
	var route struct{ Paths []json.RawMessage }
	if _, err := f.ask(ctx, "show bgp "+family+" unicast "+prefix+" json", &route); err != nil {
		return nil, err
	}
	var paths []Path
	for _, text := range route.Paths {
		var p struct {
			AsPath                    struct{ String string }
			LocPrf                    uint32
			Peer                      struct{ PeerID netip.Addr }
			Nexthops                  []struct{ IP netip.Addr }
			Community, LargeCommunity struct{ String string }
			Bestpath                  struct{ Overall bool }
			Sourced, Stale            bool
		}
		if err := json.Unmarshal(text, &p); err != nil {
			return nil, fmt.Errorf("show bgp %s: %w", prefix, err)
		}
		if p.Sourced {
			continue
		}
		path := Path{From: p.Peer.PeerID, ASPath: p.AsPath.String, LocalPref: p.LocPrf,
			Best: p.Bestpath.Overall, Stale: p.Stale, Text: string(text),
			Communities: sorted(p.Community.String), LargeCommunities: sorted(p.LargeCommunity.String)}
		if len(p.Nexthops) > 0 {
			path.NextHop = p.Nexthops[0].IP
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func sorted(s string) []string {
	out := strings.Fields(s)
	slices.Sort(out)
	return out
}

// BFD implements Router.
func (f *FRR) BFD(ctx context.Context) (map[string]BFDSession, error) {
	var peers, counters []json.RawMessage
	if _, err := f.ask(ctx, "show bfd peers json", &peers); err != nil {
		return nil, err
	}
	if _, err := f.ask(ctx, "show bfd peers counters json", &counters); err != nil {
		return nil, err
	}
	downs := map[string]int{}
	for _, text := range counters {
		var c struct {
			Peer        string
			SessionDown int `json:"session-down"`
		}
		if err := json.Unmarshal(text, &c); err != nil {
			return nil, err
		}
		downs[c.Peer] = c.SessionDown
	}
	sessions := map[string]BFDSession{}
	for _, text := range peers {
		var p struct {
			Peer, Interface, Status string
			Uptime                  int64
			Transmit                int64 `json:"transmit-interval"`
			Receive                 int64 `json:"receive-interval"`
			RemoteTransmit          int64 `json:"remote-transmit-interval"`
			RemoteReceive           int64 `json:"remote-receive-interval"`
			RemoteMultiplier        int64 `json:"remote-detect-multiplier"`
		}
		if err := json.Unmarshal(text, &p); err != nil {
			return nil, err
		}
		s := BFDSession{Interface: p.Interface, Downs: downs[p.Peer], Text: string(text),
			State:    map[string]string{"up": "Up", "init": "Init", "down": "Down", "shutdown": "AdminDown"}[p.Status],
			Interval: time.Duration(max(p.Transmit, p.RemoteReceive)) * time.Millisecond,
			Detect:   time.Duration(p.RemoteMultiplier*max(p.Receive, p.RemoteTransmit)) * time.Millisecond}
		if s.State == "Up" {
			s.Since = time.Now().Add(-time.Duration(p.Uptime) * time.Second)
		}
		sessions[p.Peer] = s
	}
	return sessions, nil
}
