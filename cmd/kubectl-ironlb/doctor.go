package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
)

func (t *tool) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor [NODE]...",
		Short: "Check the nodes, with the remedy for each problem",
		Long: `doctor checks what IronLB needs of the nodes: that each speaker reports, the data plane and what it needs of the kernel,
kernel parameters, other firewalls, kube-proxy and other service proxies, the network plugin, MTU, heartbeats between the
nodes, clocks, real-time priority, and access to the API server. It reads what the speakers report and needs no shell on a
node.

Each problem has a reason and what to do, and names the nodes that share it. With -o wide each check of each node is
listed. The exit code is 0 if all is well, 1 if there are problems, 2 if an object could not be read.`,
		Example: `  kubectl ironlb doctor
  kubectl ironlb doctor node-1 -o wide`,
		RunE: t.connected(func(ctx context.Context, nodes []string) error {
			return t.show(ctx, func(c *diagnose.Cluster) (any, diagnose.State, func(*bytes.Buffer), error) {
				t.speakerPods(ctx, c)
				for _, name := range nodes {
					if !slices.Contains(c.WithSpeaker(), name) {
						return nil, "", nil, fmt.Errorf("node %s has no speaker: nodes with one are %s", name, orDash(strings.Join(c.WithSpeaker(), ", ")))
					}
				}
				checks := c.Doctor(nodes)
				if len(checks) == 0 {
					return nil, "", nil, errors.New("no node has a speaker: name the namespace of IronLB with --ironlb-namespace")
				}
				return map[string]any{"checks": checks}, checks[0].State, func(out *bytes.Buffer) { t.writeChecks(out, checks) }, nil
			})
		}),
	}
	t.outputFlags(cmd)
	return cmd
}

// speakerPods lists the Pods of the speakers.
func (t *tool) speakerPods(ctx context.Context, c *diagnose.Cluster) {
	var pods corev1.PodList
	if err := t.list(ctx, &pods, client.InNamespace(t.system), client.MatchingLabels{"app.kubernetes.io/name": "ironlb-speaker"}); err != nil {
		c.Unread["Pods"] = printable(err.Error())
	}
	c.Pods = pods.Items
}

// writeChecks writes the problems, and then how many nodes pass each check and which do not; with -o wide the outcome of
// each check on each node.
func (t *tool) writeChecks(out *bytes.Buffer, checks []diagnose.Group) {
	t.writeProblems(out, slices.DeleteFunc(slices.Clone(checks), func(g diagnose.Group) bool { return g.State == diagnose.OK }))
	if t.output == "wide" {
		t.writeOutcomes(out, checks)
		return
	}
	passed, failed := map[string]int{}, map[string][]string{}
	for _, g := range checks {
		if g.State == diagnose.OK {
			passed[g.Kind] += len(g.Objects)
			continue
		}
		passed[g.Kind] += 0 // a check that no node passes has a line, too
		failed[g.Kind] = append(failed[g.Kind], g.Objects...)
	}
	w := table(out, "CHECK\tOK\tNOT OK")
	for _, check := range slices.Sorted(maps.Keys(passed)) {
		slices.Sort(failed[check])
		fmt.Fprintf(w, "%s\t%d\t%s\n", check, passed[check], orDash(t.some(slices.Compact(failed[check]))))
	}
	w.Flush()
}

func (t *tool) writeOutcomes(out *bytes.Buffer, checks []diagnose.Group) {
	var rows []string
	for _, g := range checks {
		for _, node := range g.Objects {
			rows = append(rows, strings.Join([]string{node, g.Kind, string(g.State), orDash(g.Reason), g.Message}, "\t"))
		}
	}
	slices.Sort(rows)
	w := table(out, "NODE\tCHECK\tSTATE\tREASON\tMESSAGE")
	fmt.Fprintln(w, strings.Join(rows, "\n"))
	w.Flush()
}
