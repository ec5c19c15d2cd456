//! The field RAID-Z counts in: bytes as polynomials over GF(2), modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d), in which 2
//! generates every non-zero element.
//!
//! All tables are built at compile time from [`double`].

/// The term that doubling a byte with its top bit set adds after the shift.
pub(crate) const REDUCTION: u8 = 0x1d;
/// The order of the multiplicative group.
const ORDER: usize = 255;

/// `2 a`.
pub(crate) const fn double(a: u8) -> u8 {
    (a << 1) ^ if a & 0x80 == 0 { 0 } else { REDUCTION }
}

/// `a b`, by logarithms.
pub(crate) fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        0
    } else {
        power_of_two(usize::from(LOGS[usize::from(a)]) + usize::from(LOGS[usize::from(b)]))
    }
}

/// `a b`, from the definition, for building tables.
const fn multiply_slowly(a: u8, b: u8) -> u8 {
    let mut sum = 0;
    let mut shifted = a;
    let mut bit = 0;
    while bit < 8 {
        if b >> bit & 1 == 1 {
            sum ^= shifted;
        }
        shifted = double(shifted);
        bit += 1;
    }
    sum
}

const POWERS: [u8; ORDER] = {
    let mut table = [1; ORDER];
    let mut i = 1;
    while i < ORDER {
        table[i] = double(table[i - 1]);
        i += 1;
    }
    table
};

/// For each non-zero element, the exponent of 2 that gives it.
const LOGS: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < ORDER {
        table[POWERS[i] as usize] = i as u8;
        i += 1;
    }
    table
};

/// `2^exponent`.
pub(crate) const fn power_of_two(exponent: usize) -> u8 {
    POWERS[exponent % ORDER]
}

/// `1 / a`; 0 for 0, which callers never ask.
pub(crate) fn inverse(a: u8) -> u8 {
    if a == 0 { 0 } else { power_of_two(ORDER - usize::from(LOGS[usize::from(a)])) }
}

/// For each coefficient, products of the 16 low nibbles and of the 16 high nibbles: `c x = low[x & 15] ^ high[x >> 4]`.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) static NIBBLE_PRODUCTS: [[[u8; 16]; 2]; 256] = {
    let mut table = [[[0; 16]; 2]; 256];
    let mut c = 0;
    while c < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[c][0][nibble] = multiply_slowly(c as u8, nibble as u8);
            table[c][1][nibble] = multiply_slowly(c as u8, (nibble << 4) as u8);
            nibble += 1;
        }
        c += 1;
    }
    table
};

/// For each coefficient, multiplication as an 8 x 8 bit matrix in the layout of the GFNI affine instruction: byte
/// `7 - i` says which bits of the operand add up to bit `i` of the result.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) static MATRICES: [u64; 256] = {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut matrix = 0_u64;
        let mut column = 0;
        while column < 8 {
            let product = multiply_slowly(c as u8, 1 << column);
            let mut row = 0;
            while row < 8 {
                if product >> row & 1 == 1 {
                    matrix |= 1 << ((7 - row) * 8 + column);
                }
                row += 1;
            }
            column += 1;
        }
        table[c] = matrix;
        c += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_generates_the_whole_group_and_inverses_invert() {
        let mut seen = [false; 256];
        for exponent in 0..ORDER {
            seen[usize::from(power_of_two(exponent))] = true;
        }
        assert_eq!(seen.iter().filter(|seen| **seen).count(), ORDER);
        for a in 1..=255 {
            assert_eq!(multiply(a, inverse(a)), 1);
        }
    }

    #[test]
    fn nibble_tables_and_matrices_agree_with_the_definition() {
        for c in 0..=255_u8 {
            let [low, high] = &NIBBLE_PRODUCTS[usize::from(c)];
            let matrix = MATRICES[usize::from(c)].to_be_bytes();
            for x in 0..=255_u8 {
                let product = multiply_slowly(c, x);
                assert_eq!(multiply(c, x), product);
                assert_eq!(low[usize::from(x & 15)] ^ high[usize::from(x >> 4)], product);
                let by_matrix =
                    matrix.iter().enumerate().fold(0, |sum, (i, row)| sum | (((row & x).count_ones() as u8 & 1) << i));
                assert_eq!(by_matrix, product);
            }
        }
    }
}
