package nftbatch_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

const ruleset = `
table ip test {
	map slots { typeof numgen random mod 65536 : ip daddr; size 200000; }
	map verdicts { type ipv4_addr . inet_proto . inet_service : verdict; }
	set addresses { type ipv4_addr; }
	chain one { }
}
table ip6 test {
	map verdicts { type ipv6_addr . inet_proto . inet_service : verdict; }
	chain one { }
}`

// space returns a namespace with the ruleset.
func space(t *testing.T) *netspace.Space {
	t.Helper()
	s := netspace.New(t)
	s.Must(t, func() error { return netspace.NFT(ruleset) })
	return s
}

// list returns a set or map as nft lists it.
func list(t *testing.T, s *netspace.Space, family, kind, name string) string {
	t.Helper()
	var out []byte
	s.Must(t, func() (err error) {
		out, err = exec.Command("nft", "--numeric", "list", kind, family, "test", name).CombinedOutput()
		return err
	})
	return string(out)
}

// elements returns a set or map as a Lister lists it.
func elements(t *testing.T, s *netspace.Space, family byte, name string) (all []nftbatch.Element) {
	t.Helper()
	s.Must(t, func() error {
		l, err := nftbatch.NewLister()
		if err != nil {
			return err
		}
		defer l.Close()
		all, err = l.Elements(family, "test", name)
		return err
	})
	return all
}

var server = netip.MustParseAddr("192.0.2.1")

// What a batch adds is listed by nft as if that had added it, and a batch deletes it again.
func TestElements(t *testing.T) {
	s := space(t)
	web := ipvs.Key{Addr: server, Protocol: ipvs.TCP, Port: 80}
	dns := ipvs.Key{Addr: netip.MustParseAddr("2001:db8::1"), Protocol: ipvs.UDP, Port: 53}
	key, key6 := nftbatch.VirtualServer(web), nftbatch.VirtualServer(dns)
	batch, batch6 := nftbatch.New(unix.NFPROTO_IPV4, "test"), nftbatch.New(unix.NFPROTO_IPV6, "test")
	batch.Add("slots", nftbatch.Element{Key: nftbatch.Uint32(7), Value: server.AsSlice()})
	batch.Add("verdicts", nftbatch.Element{Key: key, Verdict: nftbatch.Goto, Chain: "one"})
	batch.Add("addresses", nftbatch.Element{Key: server.AsSlice()})
	batch6.Add("verdicts", nftbatch.Element{Key: key6, Verdict: nftbatch.Jump, Chain: "one"})
	if batch.Len() != 3 {
		t.Errorf("%d elements, want 3", batch.Len())
	}
	s.Must(t, batch.Send)
	s.Must(t, batch6.Send)
	for _, want := range []struct{ family, kind, name, element string }{
		{"ip", "map", "slots", "{ 7 : 192.0.2.1 }"},
		{"ip", "map", "verdicts", "{ 192.0.2.1 . 6 . 80 : goto one }"},
		{"ip", "set", "addresses", "{ 192.0.2.1 }"},
		{"ip6", "map", "verdicts", "{ 2001:db8::1 . 17 . 53 : jump one }"},
	} {
		if got := list(t, s, want.family, want.kind, want.name); !strings.Contains(got, "elements = "+want.element) {
			t.Errorf("listed as %s, want %s", got, want.element)
		}
	}
	slots := elements(t, s, unix.NFPROTO_IPV4, "slots")
	if len(slots) != 1 || !bytes.Equal(slots[0].Key, nftbatch.Uint32(7)) || !bytes.Equal(slots[0].Value, server.AsSlice()) {
		t.Errorf("slots: %v", slots)
	}
	for family, want := range map[byte]struct {
		key     ipvs.Key
		verdict int32
	}{unix.NFPROTO_IPV4: {web, nftbatch.Goto}, unix.NFPROTO_IPV6: {dns, nftbatch.Jump}} {
		got := elements(t, s, family, "verdicts")
		if len(got) != 1 || got[0].Verdict != want.verdict || got[0].Chain != "one" {
			t.Fatalf("verdicts: %v", got)
		}
		if key, ok := nftbatch.ParseVirtualServer(got[0].Key); !ok || key != want.key {
			t.Errorf("verdict of %v, want %v", key, want.key)
		}
	}
	batch = nftbatch.New(unix.NFPROTO_IPV4, "test")
	batch.Delete("slots", nftbatch.Uint32(7))
	batch.Add("slots", nftbatch.Element{Key: nftbatch.Uint32(7), Value: netip.MustParseAddr("192.0.2.2").AsSlice()})
	batch.Delete("verdicts", key)
	s.Must(t, batch.Send)
	if got := list(t, s, "ip", "map", "slots"); !strings.Contains(got, "{ 7 : 192.0.2.2 }") {
		t.Errorf("a replaced element is listed as %s", got)
	}
	if got := list(t, s, "ip", "map", "verdicts"); strings.Contains(got, "elements") {
		t.Errorf("a deleted element is listed: %s", got)
	}
	s.Must(t, nftbatch.New(unix.NFPROTO_IPV4, "missing").Send) // nothing to do
}

// A batch with an error changes nothing, wherever the error is.
func TestAllOrNothing(t *testing.T) {
	s := space(t)
	valid := nftbatch.Element{Key: server.AsSlice()}
	for name, c := range map[string]struct {
		add  func(*nftbatch.Batch)
		want error
	}{
		"no such set":     {func(b *nftbatch.Batch) { b.Add("missing", valid) }, unix.ENOENT},
		"no such element": {func(b *nftbatch.Batch) { b.Delete("addresses", []byte{192, 0, 2, 9}) }, unix.ENOENT},
		"no such chain": {func(b *nftbatch.Batch) {
			b.Add("verdicts", nftbatch.Element{Key: nftbatch.VirtualServer(ipvs.Key{Addr: server, Protocol: ipvs.TCP, Port: 80}), Verdict: nftbatch.Goto, Chain: "missing"})
		}, unix.ENOENT},
		"wrong key": {func(b *nftbatch.Batch) { b.Add("addresses", nftbatch.Element{Key: make([]byte, 16)}) }, unix.EINVAL},
	} {
		for _, last := range []bool{false, true} {
			batch := nftbatch.New(unix.NFPROTO_IPV4, "test")
			if !last {
				c.add(batch)
			}
			batch.Add("addresses", valid)
			if last {
				c.add(batch)
			}
			if err := s.Do(batch.Send); !errors.Is(err, c.want) || !strings.Contains(err.Error(), "table test") {
				t.Errorf("%s: error %v, want %v", name, err, c.want)
			}
			if got := list(t, s, "ip", "set", "addresses"); strings.Contains(got, "elements") {
				t.Errorf("%s: listed after the error: %s", name, got)
			}
		}
	}
}

// A batch may be greater than the default buffer of a socket and than the length of an attribute.
func TestGreatBatch(t *testing.T) {
	const elementCount = 100_000
	s := space(t)
	batch := nftbatch.New(unix.NFPROTO_IPV4, "test")
	for i := range uint32(elementCount) {
		batch.Add("slots", nftbatch.Element{Key: nftbatch.Uint32(i), Value: server.AsSlice()})
	}
	s.Must(t, batch.Send)
	listed := list(t, s, "ip", "map", "slots")
	if n := strings.Count(listed, server.String()); n != elementCount {
		t.Errorf("%d elements are listed, want %d", n, elementCount)
	}
	if n := len(elements(t, s, unix.NFPROTO_IPV4, "slots")); n != elementCount {
		t.Errorf("a Lister lists %d elements, want %d", n, elementCount)
	}
	if last := fmt.Sprintf("%d : %s", elementCount-1, server); !strings.Contains(listed, last) {
		t.Errorf("the last element is not listed")
	}
}
