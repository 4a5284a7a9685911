package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"
)

// iptables is one of the four programs for a filter table: for two families, in nftables or in the older kernel
// interface.
type iptables struct {
	program string
	family  knftables.Family
	// legacy is the file of /proc that lists the tables of the older interface; "" for those in nftables.
	legacy string
}

var fourIPTables = []iptables{
	{"iptables-nft", knftables.IPv4Family, ""},
	{"ip6tables-nft", knftables.IPv6Family, ""},
	{"iptables-legacy", knftables.IPv4Family, "ip_tables_names"},
	{"ip6tables-legacy", knftables.IPv6Family, "ip6_tables_names"},
}

var (
	errNoProgram = errors.New("program not found")
	// errNative reports a table with a name of iptables that contains objects only nft can create.
	errNative = errors.New("not a table of iptables")
)

// builtin are the chains that packets of virtual servers pass.
var builtin = []string{"INPUT", "FORWARD", "OUTPUT"}

// ourRule is the accept rule, after the chain.
var ourRule = []string{"-m", "connlabel", "--label", label, "-m", "comment", "--comment", ruleComment, "-j", "ACCEPT"}

const ruleComment = "ironlb: connections to virtual servers"

// iptablesInUse returns the programs with a filter table. A query through the program itself would create one.
func iptablesInUse(chains []baseChain) []iptables {
	var used []iptables
	for _, ipt := range fourIPTables {
		if ipt.legacy == "" {
			for _, c := range chains {
				if ipt.owns(c) {
					used = append(used, ipt)
					break
				}
			}
			continue
		}
		names, err := os.ReadFile("/proc/thread-self/net/" + ipt.legacy)
		if err == nil && bytes.Contains(append([]byte("\n"), names...), []byte("\nfilter\n")) {
			used = append(used, ipt)
		}
	}
	return used
}

// owns reports whether a base chain of nftables belongs to iptables.
func (ipt iptables) owns(c baseChain) bool {
	if ipt.legacy != "" || c.Family != string(ipt.family) || c.Table != "filter" {
		return false
	}
	for _, name := range builtin {
		if c.Name == name {
			return true
		}
	}
	return false
}

func (ipt iptables) missing() Problem {
	return Problem{
		Reason: NoIPTables, Where: ipt.program,
		Text: fmt.Sprintf("%s is in use on this node, and the program is missing here: install the package iptables, or accept "+
			"connections to virtual servers in INPUT and FORWARD by hand: %s -A FORWARD %s", ipt.program, ipt.program, quoted(ourRule)),
	}
}

// accept ensures that the accept rule is in force in each built-in chain.
func (ipt iptables) accept(ctx context.Context) (changed []string, err error) {
	listing, err := ipt.run(ctx, "-S")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, chain := range builtin {
		ours, terminal := find(listing, chain)
		if len(ours) == 1 && (terminal == 0 || ours[0] < terminal) {
			continue
		}
		if err := ipt.place(ctx, chain, ours, terminal); err != nil {
			errs = append(errs, fmt.Errorf("accept connections to virtual servers in %s of %s: %w", chain, ipt.program, err))
			continue
		}
		changed = append(changed, fmt.Sprintf("%s -A %s %s", ipt.program, chain, quoted(ourRule)))
	}
	return changed, errors.Join(errs...)
}

// find returns the positions (from 1) of IronLB's rules in a chain, and that of the terminal rule: the first one that
// drops or rejects everything, 0 if there is none.
func find(listing, chain string) (ours []int, terminal int) {
	place := 0
	for line := range strings.Lines(listing) {
		rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-A "+chain+" ")
		if !ok {
			continue
		}
		place++
		switch {
		case strings.Contains(rule, ruleComment) && strings.HasSuffix(rule, "-j ACCEPT"):
			ours = append(ours, place)
		case terminal == 0 && (strings.HasPrefix(rule, "-j DROP") || strings.HasPrefix(rule, "-j REJECT")):
			terminal = place
		}
	}
	return ours, terminal
}

// place removes IronLB's rules, and adds one before the terminal rule.
func (ipt iptables) place(ctx context.Context, chain string, ours []int, terminal int) error {
	add := append([]string{"-A", chain}, ourRule...)
	if terminal != 0 {
		at := terminal
		for _, position := range ours {
			if position < terminal {
				at-- // its removal moves the terminal rule up
			}
		}
		add = append([]string{"-I", chain, strconv.Itoa(at)}, ourRule...)
	}
	for range ours {
		if _, err := ipt.run(ctx, append([]string{"-D", chain}, ourRule...)...); err != nil {
			return err
		}
	}
	_, err := ipt.run(ctx, add...)
	return err
}

func (ipt iptables) remove(ctx context.Context) error {
	listing, err := ipt.run(ctx, "-S")
	if err != nil {
		return err
	}
	var errs []error
	for _, chain := range builtin {
		ours, _ := find(listing, chain)
		for range ours {
			_, err := ipt.run(ctx, append([]string{"-D", chain}, ourRule...)...)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// run runs the program on the table filter and returns its output. It waits for other holders of the lock.
func (ipt iptables) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, ipt.program, append([]string{"-w", "5", "-t", "filter"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", errNoProgram
	case err != nil && strings.Contains(stderr.String(), "is incompatible, use 'nft' tool"):
		return "", errNative
	case err != nil:
		return "", fmt.Errorf("run %v: %w: %s", cmd.Args, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// quoted returns arguments as typed in a shell.
func quoted(args []string) string {
	var text []string
	for _, arg := range args {
		if strings.Contains(arg, " ") {
			arg = strconv.Quote(arg)
		}
		text = append(text, arg)
	}
	return strings.Join(text, " ")
}
