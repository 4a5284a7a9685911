package bfd

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write what the scenarios give")

// TestScenarios plays testdata/*.txt: the actions of two ends with a virtual clock, and their results. A line of a
// scenario is a command; its results are indented, with the time since its start. testdata/README has the commands.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			p := &play{out: &got}
			for line := range strings.Lines(string(want)) {
				line = strings.TrimRight(line, "\n")
				switch {
				case strings.HasPrefix(line, "  "):
				case line == "" || strings.HasPrefix(line, "#"):
					fmt.Fprintln(&got, line)
				default:
					fmt.Fprintln(&got, line)
					if err := p.do(t, strings.Fields(line)); err != nil {
						t.Fatalf("%s: %v", line, err)
					}
				}
			}
			if *update {
				err = os.WriteFile(file, []byte(got.String()), 0o644)
			} else if got.String() != string(want) {
				err = fmt.Errorf("%s: it gives now\n%s\nIf that is right, run with -update", file, got.String())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// play is a running scenario.
type play struct {
	*fixture
	out     *strings.Builder
	packets bool
	silent  bool
}

func (p *play) do(t *testing.T, f []string) (err error) {
	if f[0] == "scenario" {
		p.fixture, p.packets = newFixture(t, 1), false
		p.log = func(format string, args ...any) {
			line := fmt.Sprintf(format, args...)
			if p.silent {
				return
			}
			if p.packets || !strings.Contains(line, " sends ") || strings.Contains(line, " sends each ") {
				fmt.Fprintf(p.out, "  %8.3f  %s\n", p.now.Sub(p.start).Seconds(), line)
			}
		}
		return nil
	}
	switch s := p.sides[f[0]]; {
	case f[0] == "run":
		d, err := time.ParseDuration(f[1])
		if err == nil {
			p.run(d, nil)
		}
		return err
	case f[0] == "up":
		p.silent = true
		for _, name := range []string{"a", "b"} {
			if err := p.wants(p.sides[name], append([]string{"x"}, f[1:]...)); err != nil {
				return err
			}
		}
		p.until("up", 5*time.Second, func() bool { return p.sides["a"].state() == "Up" && p.sides["b"].state() == "Up" })
		p.run(time.Second, nil)
		p.silent = false
	case f[0] == "packets":
		p.packets = f[1] == "on"
	case f[0] == "delay":
		p.delay, err = time.ParseDuration(f[1])
	case f[0] == "loss":
		p.loss, err = strconv.ParseFloat(f[1], 64)
	case s == nil:
		return fmt.Errorf("no such command")
	case f[1] == "wants":
		return p.wants(s, f[2:])
	case f[1] == "cut":
		p.cut[s.name] = true
	case f[1] == "heals":
		delete(p.cut, s.name)
	case f[1] == "ttl":
		s.ttl, err = strconv.Atoi(f[2])
	case f[1] == "restarts":
		p.boot(s)
	case f[1] == "receives":
		return p.receives(s, f[2:])
	default:
		return fmt.Errorf("no such command")
	}
	return err
}

// wants parses "NAME receive=100ms transmit=100ms multiplier=3 passive multihop ttl=250".
func (p *play) wants(s *side, f []string) error {
	if f[0] == "nothing" {
		p.want(s, nil)
		return nil
	}
	c := Config{Peer: s.peer.addr}
	for _, one := range f[1:] {
		key, value, _ := strings.Cut(one, "=")
		var err error
		switch key {
		case "receive":
			c.Timers.Receive, err = time.ParseDuration(value)
		case "transmit":
			c.Timers.Transmit, err = time.ParseDuration(value)
		case "multiplier", "ttl":
			var n uint64
			n, err = strconv.ParseUint(value, 10, 8)
			if key == "ttl" {
				c.Timers.MinimumTTL = uint8(n)
			} else {
				c.Timers.Multiplier = uint8(n)
			}
		case "passive":
			c.Timers.Passive = true
		case "multihop":
			c.MultiHop = true
		case "local":
			c.Local = s.addr
		default:
			err = fmt.Errorf("unknown option: %s", one)
		}
		if err != nil {
			return err
		}
	}
	if err := c.Check(); err != nil {
		return err
	}
	p.want(s, map[string]Config{f[0]: c})
	return nil
}

// receives delivers a packet to a side: octets in hexadecimal, or "STATE P F D M A my=1 your=2 multiplier=3 tx=100ms
// rx=100ms"; your=right is the session's own discriminator. from=ADDRESS, ttl= and multihop are its metadata.
func (p *play) receives(s *side, f []string) error {
	packet := Packet{Multiplier: 3, My: 77, DesiredTx: 100 * time.Millisecond, RequiredRx: 100 * time.Millisecond}
	in := Datagram{Source: s.peer.addr, Local: s.addr, TTL: 255, Interface: "eth0"}
	for _, one := range f {
		key, value, _ := strings.Cut(one, "=")
		n, _ := strconv.ParseUint(value, 10, 32)
		d, _ := time.ParseDuration(value)
		switch key {
		case "AdminDown", "Down", "Init", "Up":
			packet.State = map[string]State{"AdminDown": AdminDown, "Down": Down, "Init": Init, "Up": Up}[key]
		case "P":
			packet.Poll = true
		case "F":
			packet.Final = true
		case "D":
			packet.Demand = true
		case "M":
			packet.Multipoint = true
		case "A":
			packet.Authenticated = true
		case "my":
			packet.My = uint32(n)
		case "your":
			packet.Your = uint32(n)
			if value == "right" {
				s.core.Sessions(func(d uint32, _ Key, _ []string) { packet.Your = d })
			}
		case "multiplier":
			packet.Multiplier = uint8(n)
		case "tx":
			packet.DesiredTx = d
		case "rx":
			packet.RequiredRx = d
		case "ttl":
			in.TTL = int(n)
		case "from":
			in.Source = s.peer.addr.Next()
		case "multihop":
			in.MultiHop = true
		case "version", "length", "cut":
		default:
			return fmt.Errorf("unknown option: %s", one)
		}
	}
	in.Data = packet.Append(nil)
	if packet.Authenticated {
		in.Data = append(in.Data, 1, 4, 1, 'x')
		in.Data[3] = byte(len(in.Data))
	}
	for _, one := range f {
		key, value, _ := strings.Cut(one, "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "version":
			in.Data[0] = byte(n)<<5 | in.Data[0]&0x1f
		case "length":
			in.Data[3] = byte(n)
		case "cut":
			in.Data = in.Data[:n]
		}
	}
	p.deliver(flight{p.now, s, in})
	return nil
}
