package bgp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"net"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

var update = flag.Bool("update", false, "rewrite testdata")

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// everything returns a line of each kind, with every field of the values set.
func everything() []any {
	since := time.Date(2026, 11, 21, 10, 0, 0, 123, time.UTC)
	peer := routes.Peer{
		Address: addr("192.0.2.254"), Port: 179, MyASN: 65001, LocalASN: 65003, PeerASN: 4200000000, Dynamic: view.AnyExternal,
		Source: addr("192.0.2.1"), RouterID: addr("192.0.2.7"), NextHop4: addr("192.0.2.1"), NextHop6: addr("2001:db8::1"),
		HoldTime: 9 * time.Second, KeepaliveTime: 3 * time.Second, ConnectTime: time.Second, Password: "open sesame",
		MultiHop: true, TTLSecurity: true, GracefulRestart: true, RestartTime: 30 * time.Second, IPv4: true, IPv6: true,
		MaxReceivedPrefixes: 10_000,
		BFD:                 view.BFD{Receive: 300 * time.Millisecond, Transmit: 100 * time.Millisecond, Multiplier: 3, Passive: true, MinimumTTL: 254},
	}
	attributes := view.Attributes{
		LocalPref: 100, Communities: view.NewCommunitySet(65001<<16|7, 65535<<16),
		LargeCommunities: view.NewLargeCommunitySet(view.LargeCommunity{Global: 4200000000, Local1: 1, Local2: 2}),
	}
	session := routes.Session{
		State: routes.SessionEstablished, Since: since, Reason: routes.HoldTimeExpired, Message: "words", Prefixes: 2, PeerASN: 4200000000,
		PeerID: addr("192.0.2.254"), BFD: view.BFDUp, BFDSince: since, BFDReason: routes.BFDNotUp, BFDMessage: "words", Changes: 3,
	}
	return []any{
		&request{Change: &routes.Change{
			Full: true, RouterID: addr("192.0.2.1"), NodeDecommissioning: true, Serial: 7, Peers: map[string]*routes.Peer{"tor-a": &peer},
			Routes: map[netip.Prefix]routes.Route{prefix("203.0.113.5/32"): {"tor-a": attributes}, prefix("2001:db8:1::/64"): {"tor-a": {}}},
		}},
		&request{Change: &routes.Change{
			RouterID: addr("192.0.2.1"), Peers: map[string]*routes.Peer{"tor-b": nil},
			Routes: map[netip.Prefix]routes.Route{prefix("203.0.113.5/32"): nil},
		}},
		&request{Idle: true},
		&Status{Sessions: map[string]routes.Session{"tor-a": session}, Applied: 7, Problem: "words", Refused: "words", Metrics: "words"},
		&order{Change: &PeerChange{Full: true, Serial: 7, Peer: peer,
			Routes: map[netip.Prefix]*view.Attributes{prefix("203.0.113.5/32"): &attributes, prefix("2001:db8:1::/64"): nil}}},
		&order{Down: "detection time expired"},
		&order{Up: true},
		&order{Leave: &Leave{Removed: true}},
		&peerStatus{Session: session, Applied: 7},
		&request{Metrics: true},
	}
}

// TestLines fails when the protocol changes: an older reader must process the new lines, and a new one the older ones.
// So after -update, the lines may only have more fields than before.
func TestLines(t *testing.T) {
	var lines []byte
	for _, m := range everything() {
		line, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(append(lines, line...), '\n')
	}
	const file = "testdata/lines.jsonl"
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
		t.Errorf("the lines differ from %s:\n%s", file, lines)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(want)), "\n") {
		is := everything()[i]
		got := reflect.New(reflect.TypeOf(is).Elem()).Interface()
		if err := decode([]byte(line), got); err != nil || !reflect.DeepEqual(got, is) {
			t.Errorf("line %d is understood as %+v (%v)", i+1, got, err)
		}
	}
}

// TestNothingIsMissing: a new field of the values must be added to everything.
func TestNothingIsMissing(t *testing.T) {
	all := everything()
	change, status, toPeer := all[0].(*request).Change, all[3].(*Status), all[4].(*order).Change
	for _, v := range []any{*change, *change.Peers["tor-a"], change.Peers["tor-a"].BFD, change.Routes[prefix("203.0.113.5/32")]["tor-a"],
		*status, status.Sessions["tor-a"], *toPeer, *all[8].(*peerStatus)} {
		for i := range reflect.TypeOf(v).NumField() {
			if reflect.ValueOf(v).Field(i).IsZero() {
				t.Errorf("%T.%s is not set in the test's lines", v, reflect.TypeOf(v).Field(i).Name)
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, line := range map[string]string{
		"nothing":                  ``,
		"no object":                `[]`,
		"no part":                  `{}`,
		"two parts":                `{"idle":true,"change":{"RouterID":"192.0.2.1"}}`,
		"metrics and idle":         `{"metrics":true,"idle":true}`,
		"an unknown part":          `{"shout":{}}`,
		"more on the line":         `{"idle":true} {"idle":true}`,
		"a router id of IPv6":      `{"change":{"RouterID":"2001:db8::1"}}`,
		"peers without router id":  `{"change":{"Peers":{"a":null}}}`,
		"a peer without name":      `{"change":{"RouterID":"192.0.2.1","Peers":{"":{"Address":"192.0.2.2"}}}}`,
		"a peer without address":   `{"change":{"RouterID":"192.0.2.1","Peers":{"a":{}}}}`,
		"a peer anywhere":          `{"change":{"RouterID":"192.0.2.1","Peers":{"a":{"Address":"0.0.0.0"}}}}`,
		"host bits":                `{"change":{"RouterID":"192.0.2.1","Routes":{"203.0.113.5/24":{"a":{}}}}}`,
		"a prefix that is none":    `{"change":{"RouterID":"192.0.2.1","Routes":{"":{"a":{}}}}}`,
		"a route for no peer":      `{"change":{"RouterID":"192.0.2.1","Routes":{"203.0.113.5/32":{"":{}}}}}`,
		"a community that is none": `{"change":{"RouterID":"192.0.2.1","Routes":{"203.0.113.5/32":{"a":{"Communities":"1"}}}}}`,
	} {
		var r request
		if err := decode([]byte(line), &r); err == nil {
			t.Errorf("%s: %s is decoded as %+v", name, line, r)
		}
	}
	for _, line := range []string{`{}`, `{"shout":1}`, `{"up":true,"down":"x"}`} {
		var o order
		if err := decode([]byte(line), &o); err == nil {
			t.Errorf("%s is decoded as %+v", line, o)
		}
	}
}

// TestNewerFields: fields of a newer version are ignored, wherever they are in a line.
func TestNewerFields(t *testing.T) {
	object := regexp.MustCompile(`\{"([A-Za-z]+)"`) // of a struct: the keys of maps have other characters
	for _, m := range everything() {
		line, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		newer := object.ReplaceAll(line, []byte(`{"Newer":{"of":["any kind"]},"$1"`))
		got := reflect.New(reflect.TypeOf(m).Elem()).Interface()
		if err := decode(newer, got); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%s is decoded as %+v (%v)", newer, got, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range everything() {
		line, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		for _, kind := range []any{request{}, Status{}, order{}, peerStatus{}} {
			fresh := func() any { return reflect.New(reflect.TypeOf(kind)).Interface() }
			m, back := fresh(), fresh()
			if decode(line, m) != nil {
				continue
			}
			again, err := json.Marshal(m)
			if err != nil {
				t.Fatalf("what was decoded cannot be encoded: %v", err)
			}
			if err := decode(again, back); err != nil {
				t.Fatalf("what was encoded cannot be decoded: %v", err)
			}
			if second, err := json.Marshal(back); err != nil || !bytes.Equal(again, second) {
				t.Errorf("%q comes back as %q (%v)", again, second, err)
			}
		}
	})
}

// FuzzReceive: any input either ends the connection or is a line.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("{\"idle\":true}\n{\"idle\":true}\n"))
	f.Add([]byte("{\"idle\":true"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, theirs := net.Pipe()
		go func() {
			theirs.Write(data)
			theirs.Close()
		}()
		c := newConn(ours)
		defer c.Close()
		for range len(data) + 1 {
			if err := c.receive(new(request)); err != nil {
				return
			}
		}
		t.Errorf("%d octets make more lines than that", len(data))
	})
}

func TestTooLong(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() {
		chunk := bytes.Repeat([]byte(" "), 1<<20)
		for _, err := theirs.Write(chunk); err == nil; _, err = theirs.Write(chunk) {
		}
	}()
	c := newConn(ours)
	defer c.Close()
	if err := c.receive(new(request)); !errors.Is(err, bufio.ErrTooLong) {
		t.Errorf("an endless line gives %v", err)
	}
}
