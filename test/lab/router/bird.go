package router

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironlb/ironlb/test/lab/process"
)

// BIRD is a running BIRD 2.
type BIRD struct {
	place Place
	proc  *process.Process
}

// StartBIRD starts BIRD and returns after it answers.
func StartBIRD(ctx context.Context, p Place, c Config) (*BIRD, error) {
	proc, err := p.start(ctx, "bird", c.bird(), "cat >"+private+"/bird.conf\n"+
		"exec bird -f -c "+private+"/bird.conf -s "+private+"/bird.ctl -P "+private+"/bird.pid")
	if err != nil {
		return nil, err
	}
	b := &BIRD{p, proc}
	err = until(ctx, proc, "does not answer", func() bool {
		out, err := b.Ask(ctx, "show status")
		return err == nil && strings.Contains(out, "Daemon is up and running")
	})
	if err != nil {
		b.Stop()
		return nil, err
	}
	return b, nil
}

// Configure implements Router.
func (b *BIRD) Configure(ctx context.Context, c Config) error {
	out, err := b.place.do(ctx, b.proc, c.bird(), "cat >"+private+"/bird.conf\nexec birdc -s "+private+"/bird.ctl configure")
	if err == nil && !strings.Contains(out, "Reconfigur") {
		err = fmt.Errorf("bird: %s", out)
	}
	return err
}

// Ask implements Router.
func (b *BIRD) Ask(ctx context.Context, command string) (string, error) {
	return b.place.do(ctx, b.proc, "", "exec birdc -s "+private+"/bird.ctl "+command)
}

// Routes implements Router.
func (b *BIRD) Routes(ctx context.Context, family int) ([]Route, error) {
	return b.place.Routes(ctx, family, "bird")
}

// Log implements Router.
func (b *BIRD) Log() string { return process.Tail(b.proc.Log, 200) }

// Stop implements Router.
func (b *BIRD) Stop() error { return b.proc.Kill() }

// birdStale is printed by BIRD for a session whose neighbor restarts, until the neighbor's End-of-RIB.
const birdStale = "Neighbor graceful restart active"

const birdTime = "2006-01-02 15:04:05.999999"

var (
	birdSession = regexp.MustCompile(`^(\S+)\s+BGP\s+\S+\s+\S+\s+(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+)\s*(.*)$`)
	birdHold    = regexp.MustCompile(`[\d.]+/(\d+)`)
	birdRestart = regexp.MustCompile(`Restart time: (\d+)`)
	birdPath    = regexp.MustCompile(`\[(\S+) \S+ \S+[^\]]*\] (\* )?\(`)
)

// Sessions implements Router.
func (b *BIRD) Sessions(ctx context.Context) (map[string]Session, error) {
	out, err := b.Ask(ctx, "show protocols all")
	if err != nil {
		return nil, err
	}
	sessions := map[string]Session{}
	for _, block := range strings.Split(out, "\n\n") {
		first, rest, _ := strings.Cut(strings.TrimPrefix(block, "\n"), "\n")
		m := birdSession.FindStringSubmatch(first)
		if m == nil {
			continue
		}
		s := Session{State: m[3], Text: block}
		s.Since, _ = time.ParseInLocation(birdTime, m[2], time.Local)
		_, capabilities, _ := strings.Cut(rest, "Neighbor capabilities") // the router's own capabilities come first
		if m := birdRestart.FindStringSubmatch(capabilities); m != nil {
			s.RestartTime = seconds(m[1])
		}
		for line := range strings.Lines(rest) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			value = strings.TrimSpace(value)
			switch key {
			case "BGP state":
				s.Established = value == "Established"
			case "Neighbor address":
				s.Address, _ = netip.ParseAddr(value)
			case "Neighbor AS":
				n, _ := strconv.ParseUint(value, 10, 32)
				s.ASN = uint32(n)
			case "Neighbor ID":
				s.ID, _ = netip.ParseAddr(value)
			case "Import updates":
				n, _ := strconv.Atoi(strings.Fields(value)[0]) // of each channel; later ones count refused routes
				s.Updates += n
			case "Hold timer":
				if m := birdHold.FindStringSubmatch(value); m != nil {
					n, _ := strconv.Atoi(m[1])
					s.Hold = time.Duration(n) * time.Second
				}
			}
		}
		sessions[m[1]] = s
	}
	return sessions, nil
}

// RIB implements Router.
func (b *BIRD) RIB(ctx context.Context, prefix string) ([]Path, error) {
	sessions, err := b.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	out, err := b.Ask(ctx, "show route "+prefix+" all")
	if err != nil {
		if strings.Contains(out, "Network not found") {
			return nil, nil
		}
		return nil, err
	}
	var paths []Path
	for line := range strings.Lines(out) {
		if m := birdPath.FindStringSubmatch(line); m != nil {
			s := sessions[m[1]] // BIRD marks sessions, not paths
			paths = append(paths, Path{From: s.Address, Best: m[2] != "", Stale: strings.Contains(s.Text, birdStale)})
		}
		if len(paths) == 0 {
			continue
		}
		p := &paths[len(paths)-1]
		p.Text += line
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "BGP.as_path":
			p.ASPath = value
		case "BGP.next_hop":
			p.NextHop, _ = netip.ParseAddr(strings.Fields(value)[0])
		case "BGP.local_pref":
			n, _ := strconv.ParseUint(value, 10, 32)
			p.LocalPref = uint32(n)
		case "BGP.community":
			p.Communities = birdCommunities(value)
		case "BGP.large_community":
			p.LargeCommunities = birdCommunities(value)
		}
	}
	return slices.DeleteFunc(paths, func(p Path) bool { return !p.From.IsValid() }), nil
}

// birdCommunities reads "(65000,1) (65000,2)".
func birdCommunities(s string) []string {
	s = strings.NewReplacer("(", "", ")", "", ", ", ":", ",", ":").Replace(s)
	out := strings.Fields(s)
	slices.Sort(out)
	return out
}

// BFD implements Router.
func (b *BIRD) BFD(ctx context.Context) (map[string]BFDSession, error) {
	out, err := b.Ask(ctx, "show bfd sessions")
	if err != nil {
		return nil, err
	}
	sessions := map[string]BFDSession{}
	for line := range strings.Lines(out) {
		// IP address, Interface, State, Since (two words), Interval, Timeout
		f := strings.Fields(line)
		if len(f) != 7 {
			continue
		}
		if _, err := netip.ParseAddr(f[0]); err != nil {
			continue
		}
		s := BFDSession{State: f[2], Interface: f[1], Text: line}
		s.Since, _ = time.ParseInLocation(birdTime, f[3]+" "+f[4], time.Local)
		s.Interval, s.Detect = seconds(f[5]), seconds(f[6])
		sessions[f[0]] = s
	}
	return sessions, nil
}

func seconds(s string) time.Duration {
	n, _ := strconv.ParseFloat(s, 64)
	return time.Duration(n * float64(time.Second))
}
