package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ironlb/ironlb/ipvs/nft"
)

// An error is logged when it is new, a change each time. Problems are passed on each time, unless they are unknown.
func TestKeepPoliciesLogs(t *testing.T) {
	type result struct {
		changed  []string
		problems []nft.Problem
		err      error
	}
	problem := nft.Problem{Reason: nft.DropsUnknown, Where: "inet fw input", Text: "add a rule"}
	rounds := []struct {
		result
		lines int
	}{
		{result{changed: []string{"a", "b"}}, 2},
		{result{}, 0},
		{result{problems: []nft.Problem{problem}}, 0},
		{result{err: errors.New("no nft")}, 1},
		{result{err: errors.New("no nft"), problems: []nft.Problem{problem}}, 0},
		{result{err: errors.New("no nft")}, 0},
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer
		round, before, found := 0, 0, ""
		generation := uint32(0)
		always := func() (uint32, error) { generation++; return generation, nil }
		err := keepPoliciesBy(ctx, slog.New(slog.NewTextHandler(&out, nil)), func(context.Context) ([]string, []nft.Problem, error) {
			if lines := strings.Count(out.String(), "\n"); round > 0 && lines-before != rounds[round-1].lines {
				t.Errorf("round %d: %d lines, want %d", round, lines-before, rounds[round-1].lines)
			}
			before = strings.Count(out.String(), "\n")
			if round == len(rounds) {
				cancel()
				return nil, nil, ctx.Err()
			}
			round++
			r := rounds[round-1]
			return r.changed, r.problems, r.err
		}, func(problems []nft.Problem) { found += fmt.Sprint(len(problems)) }, always)
		if found != "0011" {
			t.Errorf("numbers of problems passed on: %s", found)
		}
		if err != nil {
			t.Errorf("keepPolicies = %v", err)
		}
	})
}

// Firewalls are checked again when one may have changed, or when the last check found a problem.
func TestKeepPoliciesResyncs(t *testing.T) {
	problem := []nft.Problem{{Reason: nft.DropsUnknown}}
	lost := errors.New("iptables-legacy")
	for name, c := range map[string]struct {
		generations []uint32
		problems    []nft.Problem
		unknown     error
		failure     error
		lists       int
	}{
		"unchanged": {[]uint32{7, 7, 7, 7}, nil, nil, nil, 1},
		"changed":   {[]uint32{7, 7, 8, 8}, nil, nil, nil, 2},
		"problem":   {[]uint32{7, 7, 7, 7}, problem, nil, nil, 4},
		"error":     {[]uint32{7, 7, 7, 7}, nil, nil, errors.New("no nft"), 4},
		"unknown":   {[]uint32{0, 0, 0, 0}, nil, lost, nil, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			asked, lists := 0, 0
			apply := func(context.Context) ([]string, []nft.Problem, error) { lists++; return nil, c.problems, c.failure }
			err := keepPoliciesBy(ctx, slog.New(slog.DiscardHandler), apply, func([]nft.Problem) {}, func() (uint32, error) {
				if asked++; asked == len(c.generations) {
					cancel()
				}
				return c.generations[asked-1], c.unknown
			})
			// A check during which ctx ended counts, too.
			if err != nil || lists != c.lists {
				t.Errorf("%s: %d lists, %v; want %d", name, lists, err, c.lists)
			}
		})
	}
}
