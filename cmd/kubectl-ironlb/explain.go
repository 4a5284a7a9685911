package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
)

func (t *tool) explainCommand() *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:   "explain svc [NAME]",
		Short: "Explain each step of the way from a Service to the network",
		Long: `explain follows a Service of type LoadBalancer from its spec to the network: its class, its addresses or why each pool
gives none, the advertisements, the node that answers and why not the others, the BGP sessions, the endpoints, forwarding,
and kube-proxy. Each step has the reason that conditions and Events have, and what to do. The first problem is the cause
of the following ones.

Without a name it explains each Service of IronLB that does not work, of the namespace or, with -A, of all.`,
		Example: `  kubectl ironlb explain svc web
  kubectl ironlb explain svc/web -n shop
  kubectl ironlb explain svc -A`,
		RunE: t.connected(func(ctx context.Context, args []string) error { return t.explain(ctx, args, all) }),
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Explain Services of all namespaces.")
	t.outputFlags(cmd)
	return cmd
}

// serviceName returns the name in "svc NAME", "svc/NAME" or "svc"; empty for none.
func serviceName(args []string) (string, error) {
	kind, name, slash := strings.Cut(strings.Join(args, "/"), "/")
	if !slices.Contains([]string{"svc", "service", "services"}, kind) || slash && name == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("%q is no Service: write svc NAME, with -n for its namespace", strings.Join(args, " "))
	}
	return name, nil
}

func (t *tool) explain(ctx context.Context, args []string, all bool) error {
	name, err := serviceName(args)
	if err != nil {
		return err
	}
	namespace, err := t.namespace()
	if err != nil {
		return err
	}
	return t.show(ctx, func(c *diagnose.Cluster) (any, diagnose.State, func(*bytes.Buffer), error) {
		explained, err := explanations(c, namespace, name, all)
		if err != nil {
			return nil, "", nil, err
		}
		worst := diagnose.OK
		for i := range explained {
			if f := explained[i].Cause(); f != nil && f.State.Worse(worst) {
				worst = f.State
			}
		}
		return explained, worst, func(out *bytes.Buffer) { t.writeExplanations(out, explained) }, nil
	})
}

func explanations(c *diagnose.Cluster, namespace, name string, all bool) ([]diagnose.Explanation, error) {
	why := c.Unread["Services"]
	if all && name == "" {
		why = cmp.Or(why, c.Unread[diagnose.OtherServices])
	}
	if why != "" {
		return nil, fmt.Errorf("listing Services: %s", why)
	}
	if name != "" {
		svc := c.Service(namespace, name)
		if svc == nil {
			return nil, fmt.Errorf("there is no Service %s in namespace %s: name another namespace with -n", name, namespace)
		}
		return []diagnose.Explanation{c.Explain(svc)}, nil
	}
	out := []diagnose.Explanation{}
	for i := range c.Services {
		svc := &c.Services[i]
		if (all || svc.Namespace == namespace) && c.Affected(svc) && c.Cause(svc) != nil {
			out = append(out, c.Explain(svc))
		}
	}
	return out, nil
}

func (t *tool) writeExplanations(out *bytes.Buffer, explained []diagnose.Explanation) {
	if len(explained) == 0 {
		fmt.Fprintln(out, "No Service with problems.")
	}
	for i := range explained {
		e := &explained[i]
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "Service %s/%s", e.Namespace, e.Name)
		if len(e.Addresses) > 0 {
			fmt.Fprintf(out, " (%s)", strings.Join(e.Addresses, ", "))
		}
		switch f := e.Cause(); {
		case f == nil:
			fmt.Fprintf(out, ": %s\n", t.colour(diagnose.OK, "no problem"))
		default:
			fmt.Fprintf(out, ": %s\n", t.colour(f.State, string(f.State)+" "+f.Reason))
		}
		t.writeFindings(out, e.Findings)
	}
}

// manyNodes is how many nodes other than the owner are shown; -o wide shows all.
const manyNodes = 10

func (t *tool) writeFindings(out *bytes.Buffer, findings []diagnose.Finding) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	nodes := 0
	for _, f := range findings {
		if f.Step == diagnose.StepNode {
			if nodes++; nodes > manyNodes && t.output != "wide" {
				continue
			}
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", f.Step, orDash(f.Subject), f.State, strings.TrimPrefix(f.Reason+": "+f.Message, ": "))
	}
	w.Flush()
	if nodes > manyNodes && t.output != "wide" {
		fmt.Fprintf(out, "  and %d more nodes: -o wide shows them\n", nodes-manyNodes)
	}
}
