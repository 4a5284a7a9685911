package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ironlb/ironlb/test/lab"
)

// Ways to make one node differ from the others. With each, the client must see connections break.
const (
	Slots     = "slots"     // of direct forwarding: each slot leads to the node of another one
	Conntrack = "conntrack" // the node loses the state of its connections
)

// slotsTable is the table of nftables with the slots of direct forwarding.
const slotsTable = "ironlb-direct"

// disturbEvery is less than the time in which a speaker restores its table.
const disturbEvery = 200 * time.Millisecond

// Disturb changes how a node is disturbed during the next faults.
func (b *Bench) Disturb(how string) { b.cfg.Disturb = how }

// disturb disturbs a node until the returned function is called.
func (b *Bench) disturb(ctx context.Context, n *lab.Node) (stop func() error) {
	how := map[string]func(context.Context, *lab.Node) error{Slots: rotateSlots, Conntrack: flushConntrack}[b.cfg.Disturb]
	if how == nil {
		return func() error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		times := 0
		var err error
		for ctx.Err() == nil {
			if e := how(ctx, n); e == nil {
				times++
			} else {
				err = e // the node may be without power, or its table be replaced at the moment
			}
			_ = wait(ctx, disturbEvery)
		}
		if times > 0 {
			err = nil
		} else if err == nil {
			err = fmt.Errorf("disturb %s: no attempt", b.cfg.Disturb)
		}
		ended <- err
	}()
	return func() error { cancel(); return <-ended }
}

func flushConntrack(ctx context.Context, n *lab.Node) error {
	_, err := n.Exec(ctx, "conntrack", "-F")
	return err
}

// rotateSlots gives the value of each element of the table's maps to the element before.
func rotateSlots(ctx context.Context, n *lab.Node) error {
	for _, family := range []string{"ip", "ip6"} {
		out, err := n.Exec(ctx, "nft", "-j", "list", "table", family, slotsTable)
		if err != nil {
			return err
		}
		script, err := rotate([]byte(out))
		if err == nil && script == "" {
			err = fmt.Errorf("%s has no map in table %s %s with different values", n.Name, family, slotsTable)
		}
		if err != nil {
			return err
		}
		if _, err := n.Exec(ctx, "nft", script); err != nil {
			return err
		}
	}
	return nil
}

// rotate returns the commands of nft that rotate the values of all maps of the table, from the list of a ruleset.
func rotate(ruleset []byte) (string, error) {
	var parsed struct {
		Nftables []struct {
			Map *struct {
				Family, Table, Name string
				Elem                []json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(ruleset, &parsed); err != nil {
		return "", fmt.Errorf("read the ruleset: %w", err)
	}
	var script strings.Builder
	for _, o := range parsed.Nftables {
		m := o.Map
		if m == nil || m.Table != slotsTable || len(m.Elem) < 2 {
			continue
		}
		var keys, values []string
		different := false
		for _, raw := range m.Elem {
			var pair [2]json.RawMessage
			if err := json.Unmarshal(raw, &pair); err != nil {
				return "", fmt.Errorf("read the elements of map %s: %w", m.Name, err)
			}
			key, err := text(pair[0])
			value, err2 := text(pair[1])
			if err != nil || err2 != nil {
				return "", fmt.Errorf("read the elements of map %s: %w", m.Name, firstOf(err, err2))
			}
			different = different || len(values) > 0 && value != values[0]
			keys, values = append(keys, key), append(values, value)
		}
		if !different {
			continue
		}
		var old, now []string
		for i, key := range keys {
			old, now = append(old, key), append(now, key+" : "+values[(i+1)%len(values)])
		}
		fmt.Fprintf(&script, "delete element %s %s %s { %s }\n", m.Family, m.Table, m.Name, strings.Join(old, ", "))
		fmt.Fprintf(&script, "add element %s %s %s { %s }\n", m.Family, m.Table, m.Name, strings.Join(now, ", "))
	}
	return script.String(), nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// text returns an expression of nft's JSON in nft's own syntax: a number, an address, a concatenation, a range, or a
// verdict.
func text(raw json.RawMessage) (string, error) {
	var number json.Number
	if json.Unmarshal(raw, &number) == nil && number != "" {
		return number.String(), nil
	}
	var plain string
	if json.Unmarshal(raw, &plain) == nil {
		return plain, nil
	}
	var e struct {
		Concat, Range []json.RawMessage
		Elem          *struct{ Val json.RawMessage }
		Prefix        *struct {
			Addr string
			Len  int
		}
		Jump, Goto *struct{ Target string }
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return "", err
	}
	join := func(all []json.RawMessage, with string) (string, error) {
		var parts []string
		for _, raw := range all {
			part, err := text(raw)
			if err != nil {
				return "", err
			}
			parts = append(parts, part)
		}
		return strings.Join(parts, with), nil
	}
	switch {
	case e.Concat != nil:
		return join(e.Concat, " . ")
	case e.Range != nil:
		return join(e.Range, "-")
	case e.Elem != nil:
		return text(e.Elem.Val)
	case e.Prefix != nil:
		return fmt.Sprintf("%s/%d", e.Prefix.Addr, e.Prefix.Len), nil
	case e.Jump != nil:
		return "jump " + e.Jump.Target, nil
	case e.Goto != nil:
		return "goto " + e.Goto.Target, nil
	default:
		return "", fmt.Errorf("an expression that is not known: %s", raw)
	}
}
