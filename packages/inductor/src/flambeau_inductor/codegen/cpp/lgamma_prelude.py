"""ln|gamma(x)| of floats in vectors, which libmvec does not have.

    0.75 <= x < 2.25    (x - 1) (x - 2) p(x - 1.5)        its zeros there are exact
    x >= 0.5            stirling(x), from x + 8 for x < 8, less ln of x (x + 1) ... (x + 7)
    x < 0.5             ln(pi / |sin(pi x)|) - ln gamma(1 - x)

All are computed in doubles, the latter two with two logarithms: that of the product also takes the
sine. Their error is below 3e-14, so only floats next to the zeros at negative x are more than a
unit in the last place off. Stirling's series to w**-13 is 8e-16 off where w >= 8 (Abramowitz and
Stegun, 6.1.41), the sine's to x**21 is 3e-16 off up to a half.
"""

from __future__ import annotations

LGAMMA = """\
// The polynomials near the zeros and of the sine: an own minimax fit (5e-9), and Taylor's.
INLINE float lgamma_of(float x) {
  const double z = x, t = z - 1.5;
  double p = fma_of(0.000636881542509, t, -0.000957509436104);
  p = fma_of(p, t, 0.000377676258007);
  p = fma_of(p, t, -0.000739024777812);
  p = fma_of(p, t, 0.00206245172376);
  p = fma_of(p, t, -0.00336707083908);
  p = fma_of(p, t, 0.00541742109792);
  p = fma_of(p, t, -0.00939896885884);
  p = fma_of(p, t, 0.0167999344049);
  p = fma_of(p, t, -0.0313104230708);
  p = fma_of(p, t, 0.0629112979863);
  p = fma_of(p, t, -0.145959856089);
  p = fma_of(p, t, 0.483128951151);
  const double near = (z - 1.0) * (z - 2.0) * p + 0.0; // no negative zero
  const bool reflected = x < 0.5f;
  const double y = reflected ? 1.0 - z : z;
  // From 2**23 on all floats are integers. Adding 1.5 * 2**52 rounds to one.
  const double part = z > -8388608.0 ? z : 0.0, r = part - (part + 0x1.8p52 - 0x1.8p52);
  const double s = r * r;
  double sine = fma_of(5.392664662608128e-10, s, -2.294842897299186e-08);
  sine = fma_of(sine, s, 7.952054001475513e-07);
  sine = fma_of(sine, s, -2.1915353447830217e-05);
  sine = fma_of(sine, s, 0.00046630280576761255);
  sine = fma_of(sine, s, -0.007370430945714351);
  sine = fma_of(sine, s, 0.08214588661112823);
  sine = fma_of(sine, s, -0.5992645293207921);
  sine = fma_of(sine, s, 2.550164039877345);
  sine = fma_of(sine, s, -5.16771278004997);
  sine = fma_of(sine, s, 3.141592653589793) * __builtin_fabs(r);
  const bool small = y < 8.0;
  const double low = small ? y : 1.0, w = small ? y + 8.0 : y, v = 1.0 / w, u = v * v;
  const double a = low * (low + 7.0), product = a * (a + 6.0) * ((a + 10.0) * (a + 12.0));
  const double shift = small ? product : 1.0;
  double series = fma_of(0.00641025641025641, u, -0.0019175269175269176);
  series = fma_of(series, u, 0.0008417508417508417);
  series = fma_of(series, u, -0.0005952380952380953);
  series = fma_of(series, u, 0.0007936507936507937);
  series = fma_of(series, u, -0.002777777777777778);
  series = fma_of(series, u, 0.08333333333333333) * v;
  const double stirling = (w - 0.5) * log(w) - w + (0.9189385332046728 + series);
  const double logarithm = log(reflected ? shift / sine : shift);
  const double far = reflected ? 1.1447298858494002 - stirling + logarithm : stirling - logarithm;
  const double other = __builtin_fabsf(x) == __builtin_inff() ? __builtin_inf() : far;
  return (float)((x >= 0.75f) & (x < 2.25f) ? near : other);
}
INLINE double lgamma_of(double x) { return lgamma(x); }
"""
