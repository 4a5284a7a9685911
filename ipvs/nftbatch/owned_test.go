package nftbatch_test

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

// An owned table is replaced in one transaction. No other program can change or delete it, and it ends with its owner.
// Without owners of tables in the kernel it is an ordinary one.
func TestOwned(t *testing.T) {
	s := netspace.New(t)
	const rule = "ct state != untracked udp dport 7949 drop"
	ruleset := func() string {
		t.Helper()
		var out []byte
		s.Must(t, func() (err error) {
			out, err = exec.Command("nft", "list", "ruleset").Output()
			return err
		})
		return string(out)
	}
	var owned, plain *nftbatch.Owned
	s.Must(t, func() (err error) {
		if owned, err = nftbatch.OpenOwned("owned"); err == nil {
			plain, err = nftbatch.OpenOwned("plain")
		}
		return err
	})
	plain.SetPlain()
	chain := nftbatch.Chain{Name: "in", Hook: unix.NF_INET_LOCAL_IN, Priority: 300, Drop: []nftbatch.Match{
		nftbatch.Protocol(ipvs.UDP), nftbatch.Tracked(), nftbatch.Header(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, []byte{0x1f, 0x0d}),
	}}
	for range 2 {
		for _, o := range []*nftbatch.Owned{owned, plain} {
			if err := o.Replace(unix.NFPROTO_IPV6, chain); err != nil {
				t.Fatal(err)
			}
		}
		if rules := ruleset(); strings.Count(rules, rule) != 2 || !strings.Contains(rules, "hook input priority 300; policy accept;") ||
			strings.Count(rules, "flags owner") != 1 {
			t.Fatal(rules)
		}
	}
	s.Must(t, func() error { return netspace.NFT("flush ruleset") })
	rules := ruleset()
	if strings.Count(rules, rule) != 1 || strings.Contains(rules, "plain") {
		t.Errorf("after a flush: %s", rules)
	}
	name, _, _ := strings.Cut(rules[strings.Index(rules, "owned-"):], " ")
	if err := s.Do(func() error { return netspace.NFT("delete table ip6 " + name) }); err == nil {
		t.Error("another program deletes the table")
	}
	for _, o := range []*nftbatch.Owned{owned, plain, owned} {
		if err := o.Replace(unix.NFPROTO_IPV6); err != nil {
			t.Error(err)
		}
	}
	if rules := ruleset(); rules != "" {
		t.Errorf("after the deletion: %s", rules)
	}
	if err := owned.Replace(unix.NFPROTO_IPV4, chain); err != nil {
		t.Error(err)
	}
	owned.Close()
	plain.Close()
	if rules := ruleset(); rules != "" {
		t.Errorf("without the owner: %s", rules)
	}
}
