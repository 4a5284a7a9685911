package nft_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nft"
)

func (n *node) policies(t *testing.T) (changed []string, problems []nft.Problem) {
	t.Helper()
	n.Must(t, func() (err error) {
		changed, problems, err = nft.Policies{}.Apply(context.Background())
		return err
	})
	return changed, problems
}

func (n *node) wantPolicies(t *testing.T, changes int, reasons ...nft.Reason) []nft.Problem {
	t.Helper()
	changed, problems := n.policies(t)
	if len(changed) != changes {
		t.Errorf("changed %q, want %d changes", changed, changes)
	}
	var got []nft.Reason
	for _, p := range problems {
		got = append(got, p.Reason)
	}
	if !slices.Equal(got, reasons) {
		t.Errorf("problems %v, want %v", problems, reasons)
	}
	return problems
}

var fourIPTables = []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"}

const accept = `-m connlabel --label "73" -m comment --comment "ironlb: connections to virtual servers" -j ACCEPT`

// TestPoliciesOfIPTables: the rule is added if iptables is in use, once, after all others but before a terminal rule.
// It is restored when deleted, and removed by Remove.
func TestPoliciesOfIPTables(t *testing.T) {
	for _, program := range fourIPTables {
		t.Run(program, func(t *testing.T) {
			n := &node{Space: netspace.New(t)}
			n.wantPolicies(t, 0)
			for _, names := range []string{"ip_tables_names", "ip6_tables_names"} {
				if got := n.run(t, "cat", "/proc/thread-self/net/"+names); got != "" {
					t.Errorf("iptables was not in use, and now has the tables %q", got)
				}
			}
			if got := n.nft(t, "list", "tables"); got != "" {
				t.Errorf("iptables was not in use, and now has %q", got)
			}

			n.run(t, program, "-P", "FORWARD", "DROP")
			n.run(t, program, "-A", "FORWARD", "-p", "tcp", "--dport", "25", "-j", "DROP")
			n.run(t, program, "-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")
			n.run(t, program, "-A", "INPUT", "-j", "REJECT")
			before := n.run(t, program, "-S")
			n.wantPolicies(t, 3)
			n.wantPolicies(t, 0)
			wantRules(t, n.run(t, program, "-S", "FORWARD"), "-P FORWARD DROP", "-A FORWARD -p tcp -m tcp --dport 25 -j DROP", "-A FORWARD "+accept)
			input := lines(n.run(t, program, "-S", "INPUT"))
			if len(input) != 4 || input[2] != "-A INPUT "+accept || !strings.HasPrefix(input[3], "-A INPUT -j REJECT") {
				t.Errorf("INPUT is\n%s\nwant our rule before the REJECT", strings.Join(input, "\n"))
			}

			// A second copy before the terminal rule.
			copied := []string{"-I", "INPUT", "1"}
			for i, part := range strings.Split(accept, `"`) { // odd parts are one argument
				if i%2 == 1 {
					copied = append(copied, part)
				} else {
					copied = append(copied, strings.Fields(part)...)
				}
			}
			n.run(t, program, copied...)
			n.wantPolicies(t, 1)
			if now := n.run(t, program, "-S", "INPUT"); !slices.Equal(lines(now), input) {
				t.Errorf("INPUT is\n%s\nwant\n%s", now, strings.Join(input, "\n"))
			}

			n.run(t, program, "-D", "FORWARD", "2")
			n.wantPolicies(t, 1)
			n.run(t, program, "-I", "OUTPUT", "1", "-j", "DROP") // before IronLB's, which then has no effect
			n.wantPolicies(t, 1)
			wantRules(t, n.run(t, program, "-S", "OUTPUT"), "-P OUTPUT ACCEPT", "-A OUTPUT "+accept, "-A OUTPUT -j DROP")
			n.run(t, program, "-D", "OUTPUT", "2")
			for range 2 {
				n.Must(t, func() error { return nft.Policies{}.Remove(context.Background()) })
			}
			if after := n.run(t, program, "-S"); after != before {
				t.Errorf("after Remove\n%s\nwant\n%s", after, before)
			}
		})
	}
}

func wantRules(t *testing.T, listing string, want ...string) {
	t.Helper()
	if got := lines(listing); !slices.Equal(got, want) {
		t.Errorf("rules\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func lines(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "Warning") {
			all = append(all, line)
		}
	}
	return all
}

// TestPoliciesWithoutIPTables: the program is missing, as in an image without the package.
func TestPoliciesWithoutIPTables(t *testing.T) {
	n := &node{Space: netspace.New(t)}
	n.run(t, "iptables-nft", "-P", "FORWARD", "DROP")
	n.run(t, "ip6tables-nft", "-A", "FORWARD", "-p", "tcp", "-j", "ACCEPT") // drops nothing
	path := t.TempDir()
	link(t, "nft", path)
	t.Setenv("PATH", path)
	problems := n.wantPolicies(t, 0, nft.NoIPTables)
	if !strings.Contains(problems[0].Text, "install the package iptables") {
		t.Errorf("problem %v, want that it names the package", problems[0])
	}
	n.Must(t, func() error { return nft.Policies{}.Remove(context.Background()) })
}

// TestForeignFirewalls: base chains of other programs are never changed. Those that drop unknown packets are reported,
// until they have the rule named in the report. Tables that only resemble those of iptables count as foreign, too.
func TestForeignFirewalls(t *testing.T) {
	for _, c := range []struct{ table, chain, hook, policy, rule string }{
		{"inet fw", "first", "input", "drop", "tcp dport 22 accept"},
		{"ip fw", "second", "forward", "accept", "counter log reject"},
		{"ip6 fw", "third", "output", "drop", "ct label 7 accept"},
		{"ip filter", "FORWARD", "forward", "drop", "ct label 7 accept"},
	} {
		t.Run(c.table+" "+c.chain, func(t *testing.T) {
			n := &node{Space: netspace.New(t)}
			n.nft(t, "add table "+c.table+"; add chain "+c.table+" "+c.chain+" { type filter hook "+c.hook+" priority 0; policy "+c.policy+
				"; }; add rule "+c.table+" "+c.chain+" "+c.rule+"; add chain "+c.table+" harmless { type filter hook "+c.hook+" priority 1; }; "+
				"add rule "+c.table+" harmless tcp dport 25 drop")
			before := n.nft(t, "-a", "list", "ruleset")
			problems := n.wantPolicies(t, 0, nft.DropsUnknown)
			if after := n.nft(t, "-a", "list", "ruleset"); after != before {
				t.Errorf("the rules of another program changed, from\n%s\nto\n%s", before, after)
			}
			if len(problems) != 1 || problems[0].Where != c.table+" "+c.chain || !strings.HasSuffix(problems[0].Text, ": ct label 73 accept") {
				t.Fatalf("problems %v, want %s %s and the rule", problems, c.table, c.chain)
			}
			_, rule, _ := strings.Cut(problems[0].Text, "last rule: ")
			n.nft(t, "insert rule "+c.table+" "+c.chain+" "+rule)
			n.wantPolicies(t, 0)
		})
	}
}

// TestGeneration: the number changes after a change by any program, and only then; with iptables-legacy there is none.
func TestGeneration(t *testing.T) {
	n := &node{Space: netspace.New(t)}
	generation := func() (id uint32, err error) {
		n.Must(t, func() error { id, err = nft.Generation(); return nil })
		return id, err
	}
	first, err := generation()
	if again, _ := generation(); err != nil || again != first {
		t.Errorf("%d, %v; then %d though nothing changed", first, err, again)
	}
	last := first
	for _, change := range [][]string{
		{"nft", "add", "table", "inet", "theirs"}, {"iptables-nft", "-P", "FORWARD", "DROP"}, {"ip6tables-nft", "-A", "INPUT", "-j", "DROP"},
	} {
		n.run(t, change[0], change[1:]...)
		if now, err := generation(); err != nil || now == last {
			t.Errorf("after %v: %d, %v; the same as before", change, now, err)
		} else {
			last = now
		}
	}
	n.run(t, "iptables-legacy", "-P", "FORWARD", "DROP")
	if now, err := generation(); err == nil {
		t.Errorf("with iptables-legacy: %d, want an error", now)
	}
}
