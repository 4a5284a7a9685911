package nft

import (
	"context"
	"errors"
	"fmt"
)

// Problem is a firewall of the node that may drop packets to virtual servers and that we leave alone. It is comparable.
type Problem struct {
	Reason Reason
	// Where names the chain, as "inet firewalld filter_FORWARD".
	Where string
	// Text says what to do.
	Text string
}

// Reason says what kind of problem it is.
type Reason string

const (
	// DropsUnknown: a base chain of nftables that another program made drops what it does not know, by its policy or its last rule.
	DropsUnknown Reason = "FirewallDropsUnknown"
	// NoIPTables: iptables is in use on this node, and the program for it is missing.
	NoIPTables Reason = "NoIPTables"
)

// Policies lets connections to virtual servers pass a firewall whose policy is DROP (ipvs.md 2.1.2): requests to IPVS come by INPUT
// and leave by OUTPUT, answers come by FORWARD; those of DNAT come by FORWARD both ways.
//
// No table of ours can do that: a verdict of accept ends only the base chain that gave it. So our tables set a bit of the
// connection's label (Label), and one static rule in each of those chains of iptables accepts what has it. The rule stands at the
// end, before a last rule that drops or rejects everything: what comes before, like the rules of a NetworkPolicy, keeps its say. A
// base chain of nftables that is not of iptables belongs to a program that we cannot know; it is reported.
type Policies struct{}

// Apply puts the rules in where iptables is in use and the rule is missing or comes too late. It returns what it changed and what the
// operator must do. It acts on the network namespace of the calling thread, and takes tens of milliseconds: nothing says that
// iptables has changed, so it is to be called now and then.
func (Policies) Apply(ctx context.Context) (changed []string, problems []Problem, err error) {
	chains, err := baseChains(ctx)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, ipt := range iptablesInUse(chains) {
		more, err := ipt.admit(ctx)
		changed = append(changed, more...)
		if errors.Is(err, errNative) {
			continue // made by hand with iptables' names
		}
		var its []baseChain
		chains, its = partition(chains, ipt.owns)
		if errors.Is(err, errNoProgram) {
			var drops []Problem
			drops, err = report(ctx, its)
			if len(drops) != 0 || ipt.legacy != "" { // nobody can tell what its chains do
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

// partition returns those that are not owned, and those that are.
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

// Remove takes the rules out again.
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
