package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/ironlb/ironlb/test/lab/host"
)

// Offsets in a bzImage: Linux, Documentation/arch/x86/boot.rst.
const (
	setupSectsAt    = 0x1f1
	magicAt         = 0x202
	payloadOffsetAt = 0x248
	payloadLengthAt = 0x24c
	sectorBytes     = 512
)

// uncompress writes the kernel inside a bzImage to a file. QEMU starts that file by the PVH entry. In an emulated
// machine this saves the five seconds of the kernel's own decompression.
func uncompress(ctx context.Context, bzImage, vmlinux string) error {
	b, err := os.ReadFile(bzImage)
	if err != nil {
		return err
	}
	payload, err := payloadOf(b)
	if err != nil {
		return fmt.Errorf("uncompress %s: %w", bzImage, err)
	}
	out, err := host.Output(ctx, host.Native{}, host.Cmd{
		// The uncompressed size follows the stream and must be ignored.
		Argv: []string{"xz", "--decompress", "--stdout", "--single-stream"}, Stdin: bytes.NewReader(payload),
	})
	if err != nil {
		return fmt.Errorf("uncompress %s: %w", bzImage, err)
	}
	return os.WriteFile(vmlinux, out, 0o644)
}

func payloadOf(b []byte) ([]byte, error) {
	if len(b) < payloadLengthAt+4 || string(b[magicAt:magicAt+4]) != "HdrS" {
		return nil, fmt.Errorf("it is not a bzImage")
	}
	start := (int(b[setupSectsAt])+1)*sectorBytes + int(binary.LittleEndian.Uint32(b[payloadOffsetAt:]))
	end := start + int(binary.LittleEndian.Uint32(b[payloadLengthAt:]))
	if start > end || end > len(b) {
		return nil, fmt.Errorf("its payload from %d to %d is beyond its %d bytes", start, end, len(b))
	}
	return b[start:end], nil
}
