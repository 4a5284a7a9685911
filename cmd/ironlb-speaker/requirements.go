package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nft"
)

// Requirements of a node. The kernel: reject in prerouting (f53b9b0bdc59, Linux 5.9). nft: the library knftables
// supports no older one; the image has 1.0.6.
const (
	kernelLeastMajor, kernelLeastMinor = 5, 9
	nftLeastMajor, nftLeastMinor       = 1, 0
	nftLeastPatch                      = 1
)

// requirements are the inputs of checkRequirements.
type requirements struct {
	release func() (string, error)
	version func(context.Context) (string, error)
	// probe makes nft and the kernel validate the rules.
	probe func(context.Context) error
}

// check returns an error if the node lacks what no speaker can run without and what is not fixed at runtime: the
// program nft, a sufficient version of it, and a kernel that accepts the rules. Whether a kernel is too old depends on
// its features, since distributions backport. The loop reports other problems, such as a missing permission,
// repeatedly.
func (r requirements) check(ctx context.Context, log *slog.Logger) error {
	version, err := r.version(ctx)
	if err != nil {
		return fmt.Errorf("check the node's requirements: %w", err)
	}
	if nftTooOld(version) {
		return fmt.Errorf("check the node's requirements: %s is too old: install nftables %d.%d.%d or later", version,
			nftLeastMajor, nftLeastMinor, nftLeastPatch)
	}
	release, err := r.release()
	if err != nil {
		return fmt.Errorf("check the node's requirements: %w", err)
	}
	err = r.probe(ctx)
	switch {
	case err == nil:
		return nil
	case kernelTooOld(release):
		return fmt.Errorf("check the node's requirements: kernel %s is too old: boot Linux %d.%d or later "+
			"(reject in prerouting): %w", release, kernelLeastMajor, kernelLeastMinor, err)
	}
	log.Warn("the packet filter does not take the rules; trying again", "kernel", release, "nft", version, "error", err)
	return nil
}

func kernelTooOld(release string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return n == 2 && (major < kernelLeastMajor || major == kernelLeastMajor && minor < kernelLeastMinor)
}

func nftTooOld(version string) bool {
	var major, minor, patch int
	n, _ := fmt.Sscanf(version, "nftables v%d.%d.%d", &major, &minor, &patch)
	return n == 3 && (major < nftLeastMajor || major == nftLeastMajor && minor == nftLeastMinor && patch < nftLeastPatch)
}

// checkRequirements ends a process that cannot work on this node, before it changes anything.
func (p *process) checkRequirements() error {
	r := requirements{release: kernelRelease, version: nft.Version, probe: p.config.probeFilter}
	return r.check(context.Background(), p.log)
}

func kernelRelease() (string, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "", fmt.Errorf("read the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(uts.Release[:]), nil
}

// probeFilter probes the rules, with a prefix of interface names if the configuration uses one.
func (c config) probeFilter(ctx context.Context) error {
	f, err := nft.New()
	if err != nil {
		return err
	}
	defer f.Close()
	documentation := netip.AddrFrom4([4]byte{192, 0, 2, 1}) // RFC 5737
	elements := ipvs.Filter{{Set: ipvs.Addresses, Key: ipvs.Key{Addr: documentation}}: {}}
	if name := c.DetectLocal.Pattern(); name != "" {
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		elements[ipvs.Element{Set: ipvs.PodInterfaces}.From(all).On(name)] = struct{}{}
	}
	return f.Probe(ctx, elements)
}
