package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ironlb/ironlb/ipvs/nft"
)

// A problem and an error are logged when they are new, a change each time, and silence means that nothing is wrong.
func TestKeepPoliciesLogs(t *testing.T) {
	type result struct {
		changed  []string
		problems []nft.Problem
		err      error
	}
	wall := nft.Problem{Reason: nft.DropsUnknown, Where: "inet fw input", Text: "add a rule"}
	rounds := []struct {
		result
		lines int
	}{
		{result{changed: []string{"a", "b"}}, 2},
		{result{}, 0},
		{result{problems: []nft.Problem{wall}}, 1},
		{result{problems: []nft.Problem{wall}}, 0},
		{result{err: errors.New("no nft")}, 1},
		{result{err: errors.New("no nft")}, 0},
		{result{problems: []nft.Problem{wall}}, 1},
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer
		round, before := 0, 0
		err := keepPolicies(ctx, slog.New(slog.NewTextHandler(&out, nil)), func(context.Context) ([]string, []nft.Problem, error) {
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
		})
		if err != nil {
			t.Errorf("keepPolicies = %v", err)
		}
	})
}
