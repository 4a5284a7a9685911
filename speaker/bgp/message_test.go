package bgp

import (
	"bytes"
	"flag"
	"net"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

var update = flag.Bool("update", false, "rewrite testdata")

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// everything returns a message of each kind, with every field of the values set.
func everything() []Message {
	since := time.Date(2026, 11, 21, 10, 0, 0, 123, time.UTC)
	return []Message{
		hello(Speaker),
		{Change: &plan.BGPChange{
			Full: true, RouterID: addr("192.0.2.1"), NodeDecommissioning: true, Serial: 7,
			Peers: map[string]*plan.Peer{"tor-a": {
				Address: addr("192.0.2.254"), Port: 179, MyASN: 65001, LocalASN: 65003, PeerASN: 4200000000, Dynamic: view.AnyExternal,
				Source: addr("192.0.2.1"), RouterID: addr("192.0.2.7"), NextHop4: addr("192.0.2.1"), NextHop6: addr("2001:db8::1"),
				HoldTime: 9 * time.Second, KeepaliveTime: 3 * time.Second, ConnectTime: time.Second, Password: "open sesame",
				MultiHop: true, TTLSecurity: true, GracefulRestart: true, RestartTime: 30 * time.Second, IPv4: true, IPv6: true,
				MaxReceivedPrefixes: 10_000,
				BFD:                 view.BFD{Receive: 300 * time.Millisecond, Transmit: 100 * time.Millisecond, Multiplier: 3, Passive: true, MinimumTTL: 254},
			}},
			Routes: map[netip.Prefix]plan.Route{
				prefix("203.0.113.5/32"): {"tor-a": {
					LocalPref: 100, Communities: view.NewCommunitySet(65001<<16|7, 65535<<16),
					LargeCommunities: view.NewLargeCommunitySet(view.LargeCommunity{Global: 4200000000, Local1: 1, Local2: 2}),
				}},
				prefix("2001:db8:1::/64"): {"tor-a": {}},
			},
		}},
		{Change: &plan.BGPChange{
			RouterID: addr("192.0.2.1"), Peers: map[string]*plan.Peer{"tor-b": nil},
			Routes: map[netip.Prefix]plan.Route{prefix("203.0.113.5/32"): nil},
		}},
		{Report: &plan.BGPReport{Full: true, Applied: 7, Sessions: map[string]*plan.Session{"tor-a": {
			State: plan.SessionEstablished, Since: since, Reason: plan.HoldTimeExpired, Message: "words", Prefixes: 2, PeerASN: 4200000000,
			PeerID: addr("192.0.2.254"), BFD: view.BFDUp, BFDSince: since, BFDReason: plan.BFDNotUp, BFDMessage: "words", Changes: 3,
		}}}},
		{Report: &plan.BGPReport{Sessions: map[string]*plan.Session{"tor-b": nil}}},
		{Down: &Down{Peer: "tor-a", Why: "detection time expired"}},
		{Leave: &Leave{}},
		{Health: &Health{Problem: "words"}},
		{Health: &Health{}},
		{Refused: "words"},
		{Up: &Up{Peer: "tor-a"}},
		{Leave: &Leave{All: true}},
	}
}

// TestVersion3 fails when the protocol changes: then raise the version, and keep the messages of the previous one
// readable.
func TestVersion3(t *testing.T) {
	var lines []byte
	for _, m := range everything() {
		line, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line...)
	}
	const file = "testdata/version3.jsonl"
	if *update {
		if err := os.WriteFile(file, lines, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(lines, want) {
		t.Errorf("the messages differ from %s:\n%s", file, lines)
	}
	understood(t, string(want), everything())
}

// TestOlderVersions: messages of older versions are accepted.
func TestOlderVersions(t *testing.T) {
	want := everything()
	want[0].Hello.Version = 2
	want[1].Change.Peers["tor-a"].MaxReceivedPrefixes = 0
	lines, err := os.ReadFile("testdata/version2.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	understood(t, string(lines), want)
	if lines, err = os.ReadFile("testdata/version1.jsonl"); err != nil {
		t.Fatal(err)
	}
	want[0].Hello.Version = 1
	want[1].Change.Serial, want[1].Change.NodeDecommissioning, want[3].Report.Applied = 0, false, 0
	want[1].Change.Peers["tor-a"].RouterID = netip.Addr{}
	want[3].Report.Sessions["tor-a"].BFDReason, want[3].Report.Sessions["tor-a"].BFDMessage = "", ""
	understood(t, string(lines), want)
}

func understood(t *testing.T, lines string, want []Message) {
	t.Helper()
	for i, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		m, err := decode([]byte(line), false)
		if err != nil {
			t.Errorf("line %d is not understood: %v", i+1, err)
		} else if !reflect.DeepEqual(m, want[i]) {
			t.Errorf("line %d is understood as %+v", i+1, m)
		}
	}
}

// TestNothingIsMissing: a new field of the values must be added to everything.
func TestNothingIsMissing(t *testing.T) {
	change, report := everything()[1].Change, everything()[3].Report
	for _, v := range []any{*change.Peers["tor-a"], change.Peers["tor-a"].BFD, change.Routes[prefix("203.0.113.5/32")]["tor-a"], *report.Sessions["tor-a"]} {
		for i := range reflect.TypeOf(v).NumField() {
			if reflect.ValueOf(v).Field(i).IsZero() {
				t.Errorf("%T.%s is not set in the test's messages", v, reflect.TypeOf(v).Field(i).Name)
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, line := range map[string]string{
		"nothing":                       ``,
		"no object":                     `[]`,
		"no part":                       `{}`,
		"two parts":                     `{"leave":{},"refused":"x"}`,
		"an unknown part":               `{"leave":{},"shout":1}`,
		"an unknown field":              `{"change":{"Full":true,"RouterID":"192.0.2.1","Peers":{"a":{"Address":"192.0.2.2","Colour":"red"}}}}`,
		"more on the line":              `{"leave":{}} {"leave":{}}`,
		"a router id of IPv6":           `{"change":{"RouterID":"2001:db8::1"}}`,
		"peers without router id":       `{"change":{"Peers":{"a":null}}}`,
		"a peer without name":           `{"change":{"RouterID":"192.0.2.1","Peers":{"":{"Address":"192.0.2.2"}}}}`,
		"a peer without address":        `{"change":{"RouterID":"192.0.2.1","Peers":{"a":{}}}}`,
		"a peer anywhere":               `{"change":{"RouterID":"192.0.2.1","Peers":{"a":{"Address":"0.0.0.0"}}}}`,
		"a full set with a removal":     `{"change":{"Full":true,"RouterID":"192.0.2.1","Peers":{"a":null}}}`,
		"host bits":                     `{"change":{"RouterID":"192.0.2.1","Routes":{"203.0.113.5/24":{"a":{}}}}}`,
		"a prefix that is none":         `{"change":{"RouterID":"192.0.2.1","Routes":{"":{"a":{}}}}}`,
		"a route for no peer":           `{"change":{"RouterID":"192.0.2.1","Routes":{"203.0.113.5/32":{"":{}}}}}`,
		"a community that is none":      `{"change":{"RouterID":"192.0.2.1","Routes":{"203.0.113.5/32":{"a":{"Communities":"1"}}}}}`,
		"a session down that is no one": `{"down":{"why":"x"}}`,
	} {
		if m, err := decode([]byte(line), false); err == nil {
			t.Errorf("%s: %s is decoded as %+v", name, line, m)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range everything() {
		line, err := encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := decode(line, false)
		if err != nil {
			return
		}
		again, err := encode(m)
		if err != nil {
			t.Fatalf("what was decoded cannot be encoded: %v", err)
		}
		back, err := decode(again, false)
		if err != nil {
			t.Fatalf("what was encoded cannot be decoded: %v", err)
		}
		if second, err := encode(back); err != nil || !bytes.Equal(again, second) {
			t.Errorf("%q comes back as %q (%v)", again, second, err)
		}
	})
}

// FuzzReceive: any input either ends the connection or is a message.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("{\"leave\":{}}\n{\"leave\":{}}\n"), true)
	f.Add([]byte("{\"leave\":{}"), false)
	f.Fuzz(func(t *testing.T, data []byte, lenient bool) {
		ours, theirs := net.Pipe()
		go func() {
			theirs.Write(data)
			theirs.Close()
		}()
		c := NewConn(ours)
		c.lenient = lenient
		defer c.Close()
		for range len(data) + 1 {
			if _, err := c.Receive(); err != nil {
				return
			}
		}
		t.Errorf("%d octets make more messages than that", len(data))
	})
}

// TestVersions: the interoperation of two versions.
func TestVersions(t *testing.T) {
	const more = `{"change":{"RouterID":"192.0.2.1","Routes":{"203.0.113.5/32":{"a":{"Colour":"red"}}}}}`
	for name, test := range map[string]struct {
		hello   string
		talks   bool // its messages are accepted
		refused bool // it receives the reason
		lenient bool // unknown fields are ignored
	}{
		"the same": {hello: `{"hello":{"version":3,"oldest":1,"role":"speaker"}}`, talks: true},
		"newer, with something more": {hello: `{"hello":{"version":4,"oldest":1,"role":"speaker","more":1}}`,
			talks: true, lenient: true},
		"newer, and this is too old": {hello: `{"hello":{"version":5,"oldest":4,"role":"speaker"}}`, refused: true},
		"older":                      {hello: `{"hello":{"version":1,"oldest":1,"role":"speaker"}}`, talks: true},
		"something else":             {hello: `{"leave":{}}`},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			refusal := make(chan string, 1)
			go func() {
				c := NewConn(theirs)
				theirs.Write([]byte(test.hello + "\n"))
				m, err := c.Receive()
				if err == nil && m.Hello != nil {
					theirs.Write([]byte(more + "\n"))
					refusal <- ""
					return
				}
				refusal <- text(err)
				theirs.Close()
			}()
			c := NewConn(ours)
			_, err := c.Answer(Process)
			if test.talks != (err == nil) {
				t.Fatalf("hello gives %v", err)
			}
			if test.talks {
				if _, err := c.Receive(); test.lenient != (err == nil) {
					t.Errorf("something more gives %v", err)
				}
			}
			c.Close()
			if why := <-refusal; test.refused != strings.Contains(why, "upgrade") {
				t.Errorf("it receives %q", why)
			}
		})
	}
}

func TestTooLong(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() {
		chunk := bytes.Repeat([]byte(" "), 1<<20)
		for _, err := theirs.Write(chunk); err == nil; _, err = theirs.Write(chunk) {
		}
	}()
	c := NewConn(ours)
	defer c.Close()
	if _, err := c.Receive(); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("an endless line gives %v", err)
	}
}
