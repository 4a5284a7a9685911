package nft_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nft"
)

// In a small image there is no /etc/protocols, and nft lists protocols by number.
func TestWithoutNamesOfProtocols(t *testing.T) {
	real, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	script := `#!/bin/sh
exec unshare --mount sh -c '[ ! -e /etc/protocols ] || mount --bind /dev/null /etc/protocols && exec ` + real + ` "$@"' nft "$@"
`
	if err := os.WriteFile(filepath.Join(bin, "nft"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	n := newNode(t)
	n.apply(t, everything())
	n.wantListed(t, everything())
	n.wantIntact(t, true)
	if got := n.nft(t, "list", "table", "ip", nft.TableName); !strings.Contains(got, vip+" . 6 . 80") {
		t.Errorf("nft has names of protocols, this test proves nothing:\n%s", got)
	}
}

func (n *node) rules(t *testing.T) string {
	t.Helper()
	return n.nft(t, "-a", "-t", "list", "table", "ip", "ironlb") + n.nft(t, "-a", "-t", "list", "table", "ip6", "ironlb")
}

func TestContents(t *testing.T) {
	n := newNode(t)
	n.wantListed(t, nil)
	n.wantWritten(t, web(), 6)
	n.wantListed(t, web())
	n.wantWritten(t, web(), 0)
	before := n.rules(t)

	n.wantWritten(t, everything(), len(everything())-6)
	n.wantListed(t, everything())
	n.wantIntact(t, true)
	listed := n.nft(t, "list", "ruleset")
	for _, text := range []string{"203.0.113.4 . tcp . 80", "2001:db8:4::4 . sctp . 53 . 2001:db8:2::/48"} {
		if !strings.Contains(listed, text) {
			t.Errorf("nft does not list %q:\n%s", text, listed)
		}
	}
	n.wantWritten(t, web(), len(everything())-6)
	n.wantListed(t, web())
	n.wantIntact(t, true)
	if after := n.rules(t); after != before {
		t.Errorf("more than elements changed, from\n%sto\n%s", before, after)
	}
}

// TestFamilyWithoutElements: such a family has no table until it has elements, since connection tracking has a cost.
func TestFamilyWithoutElements(t *testing.T) {
	n := newNode(t)
	n.apply(t, web4())
	if got := n.nft(t, "list", "tables"); got != "table ip ironlb\n" {
		t.Errorf("tables %q, want that of IPv4 alone", got)
	}
	n.wantWritten(t, web(), 3)
	n.wantListed(t, web())
	n.wantIntact(t, true)
	n.wantWritten(t, web4(), 3)
	n.wantWritten(t, web(), 3)
	n.wantListed(t, web())
	n.open(t)
	n.apply(t, web4())
	if got := n.nft(t, "list", "tables"); got != "table ip ironlb\n" {
		t.Errorf("after a restart tables %q, want that of IPv4 alone", got)
	}
}

func TestRefused(t *testing.T) {
	n := newNode(t)
	n.apply(t, nil)
	for _, e := range []ipvs.Element{
		{}, {Set: ipvs.NumSets, Key: ipvs.Key{Addr: netip.MustParseAddr(vip)}},
		addr(ipvs.Addresses, "::ffff:203.0.113.4"), addr(ipvs.Addresses, "fe80::1%eth0"),
		of(ipvs.Addresses, key(ipvs.TCP, vip, 80)), of(ipvs.Served, key(ipvs.TCP, vip, 0)), of(ipvs.Served, key(47, vip, 80)),
		from(ipvs.Served, key(ipvs.TCP, vip, 80), "192.0.2.0/24"), of(ipvs.Allowed, key(ipvs.TCP, vip, 80)),
		from(ipvs.Allowed, key(ipvs.TCP, vip, 80), "2001:db8::/32"), from(ipvs.Allowed, key(ipvs.TCP, vip, 80), "192.0.2.1/24"),
		ipvs.Element{Set: ipvs.PodInterfaces}.From(netip.MustParsePrefix("0.0.0.0/0")), ipvs.Element{Set: ipvs.PodInterfaces}.On("cni0"),
		interfaces("192.0.2.0/24", "cni0"), interfaces("::/0", "cali+"), interfaces("::/0", "*"), interfaces("::/0", `a"`),
		interfaces("0.0.0.0/0", "012345678901234*"), interfaces("0.0.0.0/0", "0123456789012345"),
		ipvs.Element{Set: ipvs.Pods}.From(netip.MustParsePrefix("0.0.0.0/0")).On("cni0"),
		{Set: ipvs.Pods}, from(ipvs.Pods, key(ipvs.TCP, vip, 80), "192.0.2.0/24"),
	} {
		n.Must(t, func() error {
			if _, err := n.filter.Build(context.Background(), filter(e)); err == nil {
				t.Errorf("Build with %#v succeeded", e)
			}
			if _, err := n.filter.Update(context.Background(), []ipvs.FilterChange{{Element: e}}); err == nil {
				t.Errorf("Update with %#v succeeded", e)
			}
			return nil
		})
	}
	n.wantIntact(t, true)
}

// TestPodInterfaces: interface names and name prefixes are added, listed, and deleted. nft 1.0.6 refuses the deletion
// of prefixes.
func TestPodInterfaces(t *testing.T) {
	n := newNode(t)
	for _, names := range [][]string{
		{"cali*"}, {"cali*", "cni0", "01234567890123*"}, {"cni0"}, {"c*", "012345678901234"}, nil, {"lxc*"},
	} {
		for _, lost := range []bool{false, true} {
			want := web()
			for _, name := range names {
				want = plus(want, interfaces("0.0.0.0/0", name), interfaces("::/0", name))
			}
			n.apply(t, want)
			n.wantListed(t, want)
			if lost {
				n.filter.Lose()
			}
			n.wantIntact(t, true)
		}
	}
}

func interfaces(all, name string) ipvs.Element {
	return ipvs.Element{Set: ipvs.PodInterfaces}.From(netip.MustParsePrefix(all)).On(name)
}

func TestNoCommand(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := nft.New()
	if !errors.Is(err, nft.ErrNoCommand) || !strings.Contains(err.Error(), "install the package nftables") {
		t.Errorf("New without nft = %v, want ErrNoCommand that names the package", err)
	}
}

// TestWithoutIPv6: a kernel without nftables for IPv6 serves IPv4, and reports what it cannot do.
func TestWithoutIPv6(t *testing.T) {
	real, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	script := `#!/bin/sh
if [ "$*" = --version ]; then exec ` + real + ` --version; fi
case "$* " in *" -f "*) input=$(cat);; *) input=$*;; esac
case "$input" in *ip6*) echo 'Error: Could not process rule: Address family not supported by protocol' >&2; exit 1;; esac
case "$* " in *" -f "*) printf '%s\n' "$input" | ` + real + ` "$@";; *) exec ` + real + ` "$@";; esac
`
	if err := os.WriteFile(filepath.Join(bin, "nft"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	n := newNode(t)
	n.wantWritten(t, web4(), 3)
	n.wantIntact(t, true)
	n.filter.Lose()
	n.wantIntact(t, true)
	n.wantListed(t, web4())
	n.Must(t, func() error {
		_, err := n.filter.Build(context.Background(), web())
		if err == nil || !strings.Contains(err.Error(), "no nftables for family ip6") || !strings.Contains(err.Error(), "Address family") {
			t.Errorf("Build = %v, want an error that names the family and nft's reason", err)
		}
		if _, err := n.filter.Update(context.Background(), ipvs.DiffFilter(web4(), web())); err == nil {
			t.Error("Update with elements of IPv6 succeeded")
		}
		return n.filter.Remove(context.Background())
	})
	n.wantListed(t, nil)
}

// TestHealing damages the tables in every way as another program; Check detects each, Update refuses, Build repairs it.
func TestHealing(t *testing.T) {
	n := newNode(t)
	n.apply(t, everything())
	tables := func() string {
		return n.nft(t, "-t", "list", "table", "ip", "ironlb") + n.nft(t, "-t", "list", "table", "ip6", "ironlb")
	}
	pristine := tables()
	handles := func() string { return n.nft(t, "-a", "-t", "list", "ruleset") }
	for _, spoil := range []string{
		"flush ruleset",
		"delete table ip ironlb",
		"delete table ip6 ironlb",
		"flush chain ip ironlb postrouting",
		"insert rule ip6 ironlb prerouting accept",
		"add chain ip ironlb prerouting { policy drop; }",
		"add chain ip ironlb extra",
		"add element ip ironlb served { 203.0.113.4 . tcp . 22 }",
		"add element ip6 ironlb pods { 2001:db8::-2001:db8::5 }",
		"delete element ip ironlb masqueraded { 203.0.113.4 . tcp . 80 }",
		`add element ip ironlb addresses { 203.0.113.9 comment "foreign" }`,
		"add element ip ironlb served { * }",
		"flush set ip ironlb allowed",
		"flush set ip6 ironlb service-networks; flush set ip6 ironlb addresses",
		`add element ip ironlb pod-interfaces { "other*" }`,
		"add table ip ironlb { flags dormant; }",
		"add set ip ironlb more { type ipv4_addr; elements = { 192.0.2.1 } }",
	} {
		for _, lost := range []bool{false, true} {
			n.wantIntact(t, true)
			before := handles()
			n.nft(t, spoil)
			if lost {
				n.filter.Lose() // detectable only by the list
			}
			n.wantIntact(t, false)
			err := n.Do(func() error {
				_, err := n.filter.Update(context.Background(), ipvs.DiffFilter(everything(), web()))
				return err
			})
			if err == nil || !strings.Contains(err.Error(), "build it") {
				t.Errorf("after %q Update = %v, want an error that requests a rebuild", spoil, err)
			}
			n.apply(t, everything())
			n.wantListed(t, everything())
			if now := handles(); strings.Contains(spoil, " element ") && !strings.Contains(spoil, "*") && now != before {
				t.Errorf("after %q more than elements was replaced: before\n%s\nnow\n%s", spoil, before, now)
			}
			if got := tables(); got != pristine {
				t.Errorf("after %q and Build\n%s\nwant\n%s", spoil, got, pristine)
			}
		}
	}
}

// TestForeignFamily: a family without elements has no table. One created by another program is found and removed.
func TestForeignFamily(t *testing.T) {
	for _, lost := range []bool{false, true} {
		n := newNode(t)
		n.apply(t, web4())
		n.nft(t, "add table ip6 ironlb")
		if lost {
			n.filter.Lose()
		}
		n.wantIntact(t, false)
		n.apply(t, web4())
		if got := n.nft(t, "list", "tables"); got != "table ip ironlb\n" {
			t.Errorf("tables %q, want that of IPv4 alone", got)
		}
	}
}

// TestUpdateNotices: a transaction that the kernel refuses is an error, and the tables count as lost.
func TestUpdateNotices(t *testing.T) {
	n := newNode(t)
	n.apply(t, web())
	n.nft(t, "flush ruleset")
	more := plus(web(), of(ipvs.Served, key(ipvs.TCP, vip, 443)))
	err := n.Do(func() error {
		_, err := n.filter.Update(context.Background(), ipvs.DiffFilter(web(), more))
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "table ip ironlb") {
		t.Errorf("Update = %v, want an error that names the table", err)
	}
	n.wantIntact(t, false)
	n.wantWritten(t, more, 7)
	n.wantListed(t, more)
}

func TestForeignTableStays(t *testing.T) {
	n := newNode(t)
	n.nft(t, "add table ip foreign; add chain ip foreign c { type filter hook prerouting priority -300; }; "+
		"add rule ip foreign c counter; add table inet ironlb; add set inet ironlb s { type ipv6_addr; }")
	foreign := func() string {
		return n.nft(t, "-a", "list", "table", "ip", "foreign") + n.nft(t, "-a", "list", "table", "inet", "ironlb")
	}
	before := foreign()
	n.apply(t, everything())
	n.wantIntact(t, true)
	n.apply(t, nil)
	for range 2 {
		n.Must(t, func() error { return n.filter.Remove(context.Background()) })
	}
	if after := foreign(); after != before {
		t.Errorf("foreign tables changed from\n%sto\n%s", before, after)
	}
	if got := n.nft(t, "list", "tables"); strings.Contains(got, "table ip ironlb") || strings.Contains(got, "table ip6 ironlb") {
		t.Errorf("our tables are still there:\n%s", got)
	}
}

// TestPrefixes changes any set of prefixes to any other, most of them overlapping, which nftables refuses. After each
// step an address is in the kernel's set exactly if one of the prefixes contains it.
func TestPrefixes(t *testing.T) {
	n := newNode(t)
	r := rand.New(rand.NewPCG(4, 1))
	probes := []netip.Addr{}
	for i := range 64 {
		probes = append(probes, netip.AddrFrom4([4]byte{192, 0, 2, byte(4 * i)}))
	}
	random := func() ipvs.Filter {
		want := web4()
		for range r.IntN(8) {
			prefix, err := probes[r.IntN(len(probes))].Prefix([]int{0, 8, 24, 25, 26, 27, 28, 29, 30, 32}[r.IntN(10)])
			if err != nil {
				t.Fatal(err)
			}
			want = plus(want, ipvs.Element{Set: ipvs.Pods}.From(prefix), from(ipvs.Allowed, key(ipvs.TCP, vip, uint16(80+r.IntN(2))), prefix.String()))
		}
		return want
	}
	holds := func(f ipvs.Filter, set ipvs.Set, k ipvs.Key, probe netip.Addr) bool {
		for e := range f {
			if e.Set == set && e.Key == k && e.Prefix().Contains(probe) {
				return true
			}
		}
		return false
	}
	for range 60 {
		want := random()
		n.apply(t, want)
		var got ipvs.Filter
		n.Must(t, func() (err error) {
			got, err = n.filter.List(context.Background())
			return err
		})
		for _, probe := range probes {
			for _, at := range []group{{ipvs.Pods, ipvs.Key{}}, {ipvs.Allowed, key(ipvs.TCP, vip, 80)}, {ipvs.Allowed, key(ipvs.TCP, vip, 81)}} {
				if holds(got, at.set, at.key, probe) != holds(want, at.set, at.key, probe) {
					t.Fatalf("%v %v: kernel holds %v, want %v", at, probe, got, want)
				}
			}
		}
		n.filter.Lose()
		n.wantIntact(t, true)
	}
}

type group struct {
	set ipvs.Set
	key ipvs.Key
}

// TestManyElements: a table that needs several transactions is complete, and the next Build writes nothing.
func TestManyElements(t *testing.T) {
	n := newNode(t)
	many := web4()
	for i := range 21000 {
		many[of(ipvs.Served, ipvs.Key{Addr: netip.AddrFrom4([4]byte{203, 0, 114, byte(i)}), Protocol: ipvs.TCP, Port: uint16(1 + i/256)})] = struct{}{}
	}
	n.wantWritten(t, many, len(many))
	n.wantListed(t, many)
	n.wantIntact(t, true)
	n.nft(t, "delete element ip ironlb served { 203.0.114.9 . tcp . 5 }")
	n.wantIntact(t, false)
	n.wantWritten(t, many, 1)
	n.wantListed(t, many)
}
