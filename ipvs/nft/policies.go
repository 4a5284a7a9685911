package nft

import (
	"context"
	"errors"
	"fmt"
)

// Problem is a firewall of the node that may drop packets to virtual servers and that IronLB does not change. It is
// comparable.
type Problem struct {
	Reason Reason
	// Where names the chain, as "inet firewalld filter_FORWARD".
	Where string
	// Text is the remediation.
	Text string
}

// Reason is the kind of a problem.
type Reason string

const (
	// DropsUnknown: a foreign base chain of nftables drops unknown packets, by its policy or its last rule.
	DropsUnknown Reason = "FirewallDropsUnknown"
	// NoIPTables: iptables is in use on this node, and the program for it is missing.
	NoIPTables Reason = "NoIPTables"
)

// Policies lets connections to virtual servers pass a firewall with policy DROP: requests to IPVS pass
// INPUT and OUTPUT, answers pass FORWARD; those of DNAT pass FORWARD in both directions.
//
// No own table can do that: an accept verdict ends only its own base chain. So the tables set a bit of the connection's
// label (Label), and one static rule in each of those iptables chains accepts connections with it. The rule is at the
// end, before a terminal rule that drops or rejects everything: earlier rules, like those of a NetworkPolicy, stay
// effective. A base chain of nftables that does not belong to iptables belongs to an unknown program; it is reported.
type Policies struct{}

// Apply adds the rule where iptables is in use and the rule is missing or too late. It returns what it changed and the
// problems that the operator must fix. It acts on the network namespace of the calling thread, and takes tens of
// milliseconds. A change of iptables causes no notification, so call it periodically.
func (Policies) Apply(ctx context.Context) (changed []string, problems []Problem, err error) {
	chains, err := baseChains(ctx)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, ipt := range iptablesInUse(chains) {
		more, err := ipt.accept(ctx)
		changed = append(changed, more...)
		if errors.Is(err, errNative) {
			continue // created manually with iptables' names
		}
		var its []baseChain
		chains, its = partition(chains, ipt.owns)
		if errors.Is(err, errNoProgram) {
			var drops []Problem
			drops, err = report(ctx, its)
			if len(drops) != 0 || ipt.legacy != "" { // the content of its chains is unknown
				problems = append(problems, ipt.missing())
			}
		}
		errs = append(errs, err)
	}
	more, err := report(ctx, chains)
	return changed, append(problems, more...), errors.Join(append(errs, err)...)
}

// report returns the problems of chains.
func report(ctx context.Context, chains []baseChain) ([]Problem, error) {
	var problems []Problem
	var errs []error
	for _, c := range chains {
		problem, err := c.problem(ctx)
		errs = append(errs, err)
		if problem != (Problem{}) {
			problems = append(problems, problem)
		}
	}
	return problems, errors.Join(errs...)
}

// partition returns the chains that are not owned, and those that are.
func partition(chains []baseChain, owned func(baseChain) bool) (others, its []baseChain) {
	for _, c := range chains {
		if owned(c) {
			its = append(its, c)
		} else {
			others = append(others, c)
		}
	}
	return others, its
}

// Remove removes the rules.
func (Policies) Remove(ctx context.Context) error {
	all, err := baseChains(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, ipt := range iptablesInUse(all) {
		if err := ipt.remove(ctx); err != nil && !errors.Is(err, errNoProgram) && !errors.Is(err, errNative) {
			errs = append(errs, fmt.Errorf("remove our rules from %s: %w", ipt.program, err))
		}
	}
	return errors.Join(errs...)
}
