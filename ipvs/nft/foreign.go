package nft

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// baseChain is a base chain of nftables on the path of packets to virtual servers.
type baseChain struct {
	Family, Table, Name, Type, Hook, Policy string
}

// baseChains returns the base chains of the hooks that packets of virtual servers pass, without those of IronLB.
func baseChains(ctx context.Context) ([]baseChain, error) {
	objects, err := listJSON(ctx, "list", "chains")
	if err != nil {
		return nil, err
	}
	var found []baseChain
	for _, o := range objects {
		var c baseChain
		raw, isChain := o["chain"]
		if !isChain || json.Unmarshal(raw, &c) != nil {
			continue
		}
		hook := slices.Contains([]string{"input", "forward", "output"}, c.Hook)
		family := slices.Contains([]string{"ip", "ip6", "inet"}, c.Family)
		if hook && family && c.Type == "filter" && !strings.HasPrefix(c.Table, TableName) {
			found = append(found, c)
		}
	}
	return found, nil
}

// listJSON returns nft's listing; see "man libnftables-json".
func listJSON(ctx context.Context, args ...string) ([]map[string]json.RawMessage, error) {
	cmd := exec.CommandContext(ctx, "nft", append([]string{"--json", "--terse"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run nft %v: %w: %s", args, err, bytes.TrimSpace(stderr.Bytes()))
	}
	var listing struct {
		Objects []map[string]json.RawMessage `json:"nftables"`
	}
	if err := json.Unmarshal(out, &listing); err != nil {
		return nil, fmt.Errorf("parse the output of nft %v: %w", args, err)
	}
	return listing.Objects, nil
}

func (c baseChain) String() string { return c.Family + " " + c.Table + " " + c.Name }

// kubeProxy is the table of kube-proxy, which drops no unknown packets.
const kubeProxy = "kube-proxy"

// problem returns the remediation for a chain that drops unknown packets and has no rule for IronLB's label.
func (c baseChain) problem(ctx context.Context) (Problem, error) {
	if c.Table == kubeProxy {
		return Problem{}, nil
	}
	objects, err := listJSON(ctx, "list", "chain", c.Family, c.Table, c.Name)
	if err != nil {
		return Problem{}, err
	}
	drops := c.Policy == "drop"
	for _, o := range objects {
		var rule struct {
			Expr []map[string]json.RawMessage `json:"expr"`
		}
		raw, isRule := o["rule"]
		if !isRule || json.Unmarshal(raw, &rule) != nil {
			continue
		}
		switch {
		case acceptsLabel(rule.Expr):
			return Problem{}, nil
		case dropsAll(rule.Expr):
			drops = true
		}
	}
	if !drops {
		return Problem{}, nil
	}
	return Problem{
		Reason: DropsUnknown, Where: c.String(),
		Text: fmt.Sprintf("chain %v of nftables, made by another program, drops what it does not know, which may be packets to virtual "+
			"servers. Add to it, where that program is configured, before its last rule: ct label %s accept", c, label),
	}, nil
}

// dropsAll reports whether a rule drops or rejects every packet.
func dropsAll(expr []map[string]json.RawMessage) bool {
	for _, e := range expr {
		for kind := range e {
			switch kind {
			case "counter", "log":
			case "drop", "reject":
				return true
			default:
				return false
			}
		}
	}
	return false
}

// acceptsLabel reports whether a rule accepts packets with IronLB's label.
func acceptsLabel(expr []map[string]json.RawMessage) bool {
	labelled := false
	for _, e := range expr {
		if _, accepts := e["accept"]; accepts {
			return labelled
		}
		raw, isMatch := e["match"]
		if !isMatch {
			continue
		}
		var match struct {
			Left struct {
				CT struct {
					Key string `json:"key"`
				} `json:"ct"`
			} `json:"left"`
			Right json.RawMessage `json:"right"`
		}
		labelled = json.Unmarshal(raw, &match) == nil && match.Left.CT.Key == "label" && strings.Trim(string(match.Right), `"`) == label
		if !labelled {
			return false
		}
	}
	return false
}
