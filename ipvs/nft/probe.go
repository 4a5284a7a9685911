package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"strings"

	"github.com/ironlb/ironlb/ipvs"
)

// Probe checks whether nft and the kernel accept the package's rules with these elements, which must include one of
// IPv4. It changes nothing: "nft --check" makes the kernel validate a transaction and then abort it. The error has only
// the first message.
func (f *Filter) Probe(ctx context.Context, elements ipvs.Filter) error {
	t := f.tables[0]
	if err := t.usable(); err != nil {
		return err
	}
	if err := t.nft.Check(ctx, t.replacement(maps.Keys(elements), !f.DropPing)); err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n")
		return fmt.Errorf("probe the rules of %v: %s", t, line)
	}
	return nil
}

// Version returns what "nft --version" prints, as "nftables v1.0.6 (Lester Gooch #5)". It wraps ErrNoCommand.
func Version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "nft", "--version").Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", ErrNoCommand
	case err != nil:
		return "", fmt.Errorf("nft --version: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
